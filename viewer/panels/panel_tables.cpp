// The numbers of each panel, asked for as the panel asks for its picture: what is on the screen is
// in the cache.
#include <nlohmann/json.hpp>

#include "viewer/model/draft_view.h"
#include "viewer/model/tables.h"
#include "viewer/panels/calibration_parts.h"
#include "viewer/panels/panels.h"

namespace blockscope {
namespace {

std::vector<std::int32_t> numbered(std::size_t count, std::int32_t first) {
  std::vector<std::int32_t> numbers(count);
  for (std::size_t i = 0; i < count; ++i) numbers[i] = first + static_cast<std::int32_t>(i);
  return numbers;
}

std::optional<CsvTable> matrices_of(PanelContext& context, bool tokens) {
  ViewModel& model = context.model;
  const PanelState::Heatmap& state = context.state.heatmap;
  const StepRef* to = model.step_to_compare(state.to_step);
  if (tokens && to == nullptr) return std::nullopt;
  const auto ask = [&](const char* slot, Field field) {
    return tokens ? model.token_matrix(slot, field, to, state.all_heads)
                  : model.step_matrix(slot, field, state.all_heads);
  };
  const auto external = ask("heatmap-out", Field::attention_external);
  const auto internal = ask("heatmap-in", Field::attention_internal);
  if (!external.value || !internal.value) return std::nullopt;
  MatrixAxes axes;
  if (tokens) {
    axes.rows = "token at step " + std::to_string(model.step()->step);
    axes.columns = "token at step " + std::to_string(to->step);
    axes.row_numbers = numbered(external.value->matrix.rows, 0);
    axes.column_numbers = numbered(external.value->matrix.columns, 0);
  } else {
    axes.rows = "step";
    axes.columns = "other step";
    for (const StepRef& step : model.block()->steps) axes.row_numbers.push_back(step.step);
    axes.column_numbers = axes.row_numbers;
  }
  return matrices_table(external.value.get(), internal.value.get(), axes);
}

}  // namespace

std::optional<CsvTable> trajectory_panel_table(PanelContext& context) {
  if (context.model.step() == nullptr) return std::nullopt;
  const auto data = context.model.trajectory();
  return data.value ? std::optional(trajectory_table(*data.value)) : std::nullopt;
}

std::optional<CsvTable> heads_panel_table(PanelContext& context) {
  const PanelState::Heads& state = context.state.heads;
  if (context.model.block() == nullptr || !state.grid) return std::nullopt;
  return heads_table(*state.grid, kPanelMetrics[state.grid_metric],
                     context.model.overview()->info.meta);
}

std::optional<CsvTable> heatmap_panel_table(PanelContext& context) {
  if (context.model.step() == nullptr) return std::nullopt;
  if (context.state.heatmap.mode != 2) return matrices_of(context, context.state.heatmap.mode == 0);
  const auto data = context.model.sets();
  return data.value ? std::optional(sets_table(*data.value)) : std::nullopt;
}

std::optional<CsvTable> curves_panel_table(PanelContext& context) {
  if (context.model.block() == nullptr) return std::nullopt;
  const PanelState::Curves& state = context.state.curves;
  const TraceMeta& meta = context.model.overview()->info.meta;
  const std::size_t layer = context.model.selection().layer;
  switch (state.mode) {
    case PanelState::Curves::Mode::over_steps:
      if (!state.curves_of) return std::nullopt;
      return curves_table(means_by_step(state.curves_of->result, kPanelMetrics[state.metric]),
                          kPanelMetrics[state.metric], meta, layer);
    case PanelState::Curves::Mode::per_head:
      if (!state.bars_of) return std::nullopt;
      return sides_table(state.external, state.internal, meta);
    case PanelState::Curves::Mode::recall_sizes:
      return recall_table(state.recall);
    case PanelState::Curves::Mode::union_sizes:
      return unions_table(state.unions);
  }
  return std::nullopt;
}

std::optional<CsvTable> selection_panel_table(PanelContext& context) {
  if (context.model.step() == nullptr) return std::nullopt;
  const auto text = context.model.prefix_text();
  const auto keys = context.model.step_keys();
  const SelectionState& state = context.state.selection;
  if (!text.value || !keys.value) return std::nullopt;
  const KeyView view = compare_keys(*keys.value, state.against, static_cast<std::size_t>(state.k));
  if (view.sets.keys.empty()) return std::nullopt;
  return step_keys_table(*keys.value, view, *text.value);
}

std::optional<CsvTable> draft_panel_table(PanelContext& context) {
  if (!fits_draft_panel(context.model) || context.model.step() == nullptr) return std::nullopt;
  const auto data = context.model.draft_rounds();
  if (!data.value || data.value->rounds.empty()) return std::nullopt;
  return context.state.draft.answer ? draft_answer_table(*data.value)
                                    : draft_rounds_table(*data.value);
}

std::optional<CsvTable> compare_panel_table(PanelContext& context) {
  ViewModel& model = context.model;
  const std::optional<std::size_t> other = model.other_trace();
  if (!other) return std::nullopt;
  const PanelState::Compare& state = context.state.compare;
  const PanelMetric& choice = kPanelMetrics[state.metric];
  if (state.mode == 2) {
    const auto data = compare_trajectories(model);
    return data.value ? std::optional(compared_tokens_table(*data.value)) : std::nullopt;
  }
  if (state.mode == 3) {
    const auto data = compare_queries(model);
    return data.value ? std::optional(compared_queries_table(data.value->result)) : std::nullopt;
  }
  const auto data = compare_metric(model, state.metric, state.scope);
  if (!data.value) return std::nullopt;
  if (state.mode == 1) return compared_steps_table(*data.value, choice);
  return compared_heads_table(*data.value, choice, model.overview()->info.meta,
                              model.documents()[*other].overview->info.meta);
}

std::optional<CsvTable> calibration_panel_table(PanelContext& context) {
  const CalibrationEdit* edit = active_calibration(context.model, context.state.calibration);
  if (edit == nullptr || edit->result() == nullptr) return std::nullopt;
  return calibration_table(*edit);
}

std::optional<CsvTable> run_panel_table(PanelContext& context) {
  const Overview* overview = context.model.overview();
  if (overview == nullptr) return std::nullopt;
  CsvTable table({"part", "name", "value"});
  const TraceInfo& info = overview->info;
  table.add({std::string("file"), std::string("path"), info.path});
  table.add({std::string("file"), std::string("rows"), info.num_rows});
  table.add({std::string("file"), std::string("sequences"), info.num_sequences});
  for (const auto& [part, text] :
       {std::pair("run", &info.meta.run_json), std::pair("model", &info.meta.model_json)}) {
    const auto json = nlohmann::ordered_json::parse(*text, nullptr, false);
    if (!json.is_object()) continue;
    for (const auto& [name, value] : json.items()) {
      table.add(
          {std::string(part), name, value.is_string() ? value.get<std::string>() : value.dump()});
    }
  }
  return table;
}

}  // namespace blockscope
