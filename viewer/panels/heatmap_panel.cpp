// The Heatmap panel: token x token similarity between two steps, A_out above A_in (FlashBlock,
// arXiv 2602.05305, Fig. 1). Also step x step, and positions of the top-k sets over steps.
#include <fmt/format.h>
#include <imgui.h>
#include <implot.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "viewer/model/heatmaps.h"
#include "viewer/panels/heatmap_plot.h"
#include "viewer/panels/heatmap_state.h"
#include "viewer/panels/panels.h"
#include "viewer/panels/plot_axes.h"

namespace blockscope {
namespace {

constexpr std::array<const char*, 3> kHeatmapModes = {"token x token", "step x step",
                                                      "top-k positions"};

struct Side {
  const char* name;
  const char* slot;
  Field field;
};
constexpr std::array<Side, 2> kSides = {{{"A_out", "heatmap-out", Field::attention_external},
                                         {"A_in", "heatmap-in", Field::attention_internal}}};

/// The step that the selected one is compared with.
void pick_step(PanelContext& context) {
  std::int32_t& to_step = context.state.of<HeatmapState>().to_step;
  const auto name = [](std::int32_t step) {
    return step == 0 ? std::string("next step") : fmt::format("step {}", step);
  };
  ImGui::SameLine();
  ImGui::TextUnformatted("with");
  ImGui::SameLine();
  ImGui::SetNextItemWidth(100.0F * context.scale);
  if (!ImGui::BeginCombo("##to-step", name(to_step).c_str())) return;
  if (ImGui::Selectable(name(0).c_str(), to_step == 0)) to_step = 0;
  for (const StepRef& step : context.model.block()->steps) {
    if (ImGui::Selectable(name(step.step).c_str(), to_step == step.step)) to_step = step.step;
  }
  ImGui::EndCombo();
}

void draw_heatmap_controls(PanelContext& context) {
  HeatmapState& state = context.state.of<HeatmapState>();
  Appearance& appearance = context.appearance;
  ImGui::SetNextItemWidth(140.0F * context.scale);
  ImGui::Combo("##mode", &state.mode, kHeatmapModes.data(), static_cast<int>(kHeatmapModes.size()));
  if (state.mode == 0) pick_step(context);
  if (state.mode != 2) {
    ImGui::SameLine();
    ImGui::Checkbox("all heads", &state.all_heads);
    ImGui::SameLine();
    ImGui::Checkbox("lock range", &appearance.lock_range);
    if (appearance.lock_range) {
      ImGui::SameLine();
      ImGui::SetNextItemWidth(150.0F * context.scale);
      ImGui::DragFloatRange2("##range", &appearance.low, &appearance.high, 0.005F, -1.0F, 1.0F,
                             "%.3f", "%.3f");
    }
  }
}

std::string where(const ViewModel& model, bool all_heads) {
  const TraceMeta& meta = model.overview()->info.meta;
  const Selection& at = model.selection();
  return fmt::format("layer {}, {}", meta.layers[at.layer],
                     all_heads ? "all heads" : fmt::format("head {}", meta.heads[at.head]));
}

void draw_matrices(PanelContext& context, bool tokens) {
  ViewModel& model = context.model;
  const bool all_heads = context.state.of<HeatmapState>().all_heads;
  const StepRef* to = model.step_to_compare(context.state.of<HeatmapState>().to_step);
  const ImVec2 space = ImGui::GetContentRegionAvail();
  const float height = (space.y - ImGui::GetStyle().ItemSpacing.y) / 2;
  std::array<Data<MatrixPayload>, 2> data;
  for (std::size_t i = 0; i < kSides.size(); ++i) {
    data[i] = tokens ? request_token_matrix(model, kSides[i].slot, kSides[i].field, to, all_heads)
                     : request_step_matrix(model, kSides[i].slot, kSides[i].field, all_heads);
  }
  // Both pictures share one range, so that they can be compared.
  HeatmapPlot plot;
  if (data[0].value && data[1].value) {
    plot.low = std::min(data[0].value->low, data[1].value->low);
    plot.high = std::max(data[0].value->high, data[1].value->high);
  }
  for (std::size_t i = 0; i < kSides.size(); ++i) {
    ImGui::BeginChild(kSides[i].slot, ImVec2(space.x, height));
    if (ready_or_explain(data[i])) {
      plot.id = kSides[i].slot;
      plot.width = space.x;
      plot.height = ImGui::GetContentRegionAvail().y;
      plot.unit = "cosine";
      if (tokens) {
        const std::int32_t step = model.step()->step;
        plot.title = fmt::format("{}, {}: steps {} and {}###{}", kSides[i].name,
                                 where(model, all_heads), step, to->step, plot.id);
        plot.x_label = fmt::format("token at step {}", step);
        plot.y_label = fmt::format("token at step {}", to->step);
        plot.transpose = true;
        plot.mark_x = model.selection().token;
        plot.mark_y = model.selection().token;
      } else {
        plot.title = fmt::format("{}, {}###{}s", kSides[i].name, where(model, all_heads), plot.id);
        plot.x_label = plot.y_label = "step";
        plot.first_x = plot.first_y = 1;
        plot.mark_x = plot.mark_y = model.step()->step;
      }
      const auto hit = draw_heatmap(context, plot, data[i].value);
      if (hit) {
        Selection selection = model.selection();
        if (tokens) selection.token = static_cast<std::int32_t>(hit->column);
        if (!tokens && hit->clicked) selection.step = hit->column;
        model.select(selection);
      }
    }
    ImGui::EndChild();
  }
}

void draw_sets(PanelContext& context) {
  ViewModel& model = context.model;
  const auto data = request_sets(model);
  if (!ready_or_explain(data)) return;
  const SetsPayload& sets = *data.value;
  if (!ImPlot::BeginPlot("positions of the top-k sets###sets", ImGui::GetContentRegionAvail(),
                         ImPlotFlags_NoLegend)) {
    return;
  }
  ImPlot::SetupAxes("position in the prefix", "step", 0, ImPlotAxisFlags_Invert);
  whole_numbers(ImAxis_X1);
  whole_numbers(ImAxis_Y1);
  const double steps = sets.steps.empty() ? 1.0 : static_cast<double>(sets.steps.back());
  ImPlot::SetupAxesLimits(0, static_cast<double>(sets.context_length), 0.5, steps + 0.5,
                          ImPlotCond_Once);
  ImPlot::PushPlotClipRect();
  ImDrawList* draw = ImPlot::GetPlotDrawList();
  float high = 0.0F;
  for (const float p : sets.probability) high = p > high ? p : high;
  // By falling probability: drawn backwards, so the most probable ones are on top.
  for (std::size_t i = sets.positions.size(); i-- > 0;) {
    if (sets.positions[i] < 0) continue;
    const double x = sets.positions[i];
    const double y = sets.steps[i / sets.k];
    const ImVec2 low = ImPlot::PlotToPixels(x - 0.5, y - 0.45);
    const ImVec2 far = ImPlot::PlotToPixels(x + 0.5, y + 0.45);
    draw->AddRectFilled(low, ImVec2(std::max(far.x, low.x + 1.5F), far.y),
                        context.map.at(sets.probability[i], 0.0F, high));
  }
  ImPlot::PopPlotClipRect();
  if (ImPlot::IsPlotHovered()) {
    const ImPlotPoint mouse = ImPlot::GetPlotMousePos();
    const double position = std::round(mouse.x);
    const auto at = static_cast<std::size_t>(std::max(0.0, position));
    const bool known = position >= 0.0 && at < sets.token_texts.size();
    ImGui::SetTooltip("position %.0f: \"%s\"\nstep %.0f", position,
                      known ? sets.token_texts[at].c_str() : "-", std::round(mouse.y));
  }
  ImPlot::EndPlot();
}

std::vector<std::int32_t> numbered(std::size_t count, std::int32_t first) {
  std::vector<std::int32_t> numbers(count);
  for (std::size_t i = 0; i < count; ++i) numbers[i] = first + static_cast<std::int32_t>(i);
  return numbers;
}

std::optional<CsvTable> matrices_of(PanelContext& context, bool tokens) {
  ViewModel& model = context.model;
  const HeatmapState& state = context.state.of<HeatmapState>();
  const StepRef* to = model.step_to_compare(state.to_step);
  if (tokens && to == nullptr) return std::nullopt;
  const auto ask = [&](const char* slot, Field field) {
    return tokens ? request_token_matrix(model, slot, field, to, state.all_heads)
                  : request_step_matrix(model, slot, field, state.all_heads);
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

void draw_heatmap_panel(PanelContext& context) {
  ViewModel& model = context.model;
  if (model.step() == nullptr) return explain_missing("No denoising step is selected.");
  draw_heatmap_controls(context);
  const TraceMeta& meta = model.overview()->info.meta;
  const int mode = context.state.of<HeatmapState>().mode;
  const RecordLevel needed = mode == 2 ? RecordLevel::sets : RecordLevel::outputs;
  if (meta.level < needed) {
    return explain_missing(
        fmt::format("This trace has level '{}'. This picture needs a trace "
                    "captured with --record {}.",
                    to_string(meta.level), to_string(needed)));
  }
  if (mode == 2) {
    if (meta.set_size == 0) return explain_missing("This trace was captured without top-k sets.");
    return draw_sets(context);
  }
  if (mode == 0 && model.step_to_compare(context.state.of<HeatmapState>().to_step) == nullptr) {
    return explain_missing(
        context.state.of<HeatmapState>().to_step == 0
            ? std::string("This is the block's last step: choose a step to compare with.")
            : fmt::format("This block has no step {}.", context.state.of<HeatmapState>().to_step));
  }
  draw_matrices(context, mode == 0);
}

std::optional<CsvTable> heatmap_panel_table(PanelContext& context) {
  if (context.model.step() == nullptr) return std::nullopt;
  if (context.state.of<HeatmapState>().mode != 2)
    return matrices_of(context, context.state.of<HeatmapState>().mode == 0);
  const auto data = request_sets(context.model);
  return data.value ? std::optional(sets_table(*data.value)) : std::nullopt;
}

void show_heatmap(PanelStates& states, std::size_t mode) {
  states.of<HeatmapState>().mode = static_cast<int>(mode);
}

}  // namespace

Panel heatmap_panel() {
  return {.name = "Heatmap",
          .draw = draw_heatmap_panel,
          .table = heatmap_panel_table,
          .place = PanelPlace::right_front,
          .show = {.words = {"tokens", "steps", "sets"}, .take_word = show_heatmap}};
}

}  // namespace blockscope
