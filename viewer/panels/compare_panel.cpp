// The Compare panel compares the active trace (A) with another one (B), such as dense decoding with
// reuse, or a trained model with its backbone. It shows grids and curves with their difference, the
// tokens of a sequence in both, and the query statistics of a replayed pair (MAGE, arXiv
// 2602.14209, Table 2).
#include "viewer/model/comparison.h"

#include <fmt/format.h>
#include <imgui.h>
#include <implot.h>

#include <array>
#include <filesystem>

#include "viewer/panels/compare_views.h"
#include "viewer/panels/metric_picker.h"
#include "viewer/panels/panels.h"

namespace blockscope {
namespace {

constexpr std::array<const char*, 4> kCompareViews = {"heads", "steps", "tokens",
                                                      "query statistics"};

std::string short_name(const OpenDocument& document) {
  return std::filesystem::path(document.path).filename().string();
}

/// A combo box of the open traces; true if another one was chosen.
bool pick_trace(const char* id, const ViewModel& model, std::size_t& trace, float width) {
  ImGui::SetNextItemWidth(width);
  bool changed = false;
  if (!ImGui::BeginCombo(id, short_name(model.documents()[trace]).c_str())) return false;
  for (std::size_t i = 0; i < model.documents().size(); ++i) {
    const OpenDocument& document = model.documents()[i];
    if (!document.overview) continue;
    const std::string label = fmt::format("{}###{}-{}", document.path, id, i);
    if (ImGui::Selectable(label.c_str(), i == trace) && i != trace) {
      trace = i;
      changed = true;
    }
  }
  ImGui::EndCombo();
  return changed;
}

void draw_pair_controls(PanelContext& context) {
  ViewModel& model = context.model;
  const float width = 170.0F * context.scale;
  std::size_t a = model.selection().trace;
  std::size_t b = *model.other_trace();
  ImGui::AlignTextToFramePadding();
  ImGui::TextUnformatted("A");
  ImGui::SameLine();
  if (pick_trace("##compare-a", model, a, width)) {
    if (a == b) {
      model.swap_traces();
    } else {
      Selection selection = model.selection();
      selection.trace = a;
      model.select(selection);
    }
  }
  ImGui::SameLine();
  ImGui::TextUnformatted("B");
  ImGui::SameLine();
  if (pick_trace("##compare-b", model, b, width)) {
    if (b == model.selection().trace) {
      model.swap_traces();
    } else {
      model.select_other(b);
    }
  }
  ImGui::SameLine();
  if (ImGui::Button("Swap")) model.swap_traces();
}

void draw_mode_controls(PanelContext& context) {
  CompareState& state = context.state.of<CompareState>();
  ImGui::SetNextItemWidth(130.0F * context.scale);
  ImGui::Combo("##compare-mode", &state.mode, kCompareViews.data(),
               static_cast<int>(kCompareViews.size()));
  if (state.mode > 1) return;
  ImGui::SameLine();
  pick_metric("##compare-metric", state.metric, context.scale, /*of_files=*/false);
  ImGui::SameLine();
  constexpr std::array<const char*, 3> kScopes = {"all sequences", "sequences in both",
                                                  "this sequence"};
  int scope = static_cast<int>(state.scope);
  ImGui::SetNextItemWidth(160.0F * context.scale);
  if (ImGui::Combo("##compare-scope", &scope, kScopes.data(), static_cast<int>(kScopes.size()))) {
    state.scope = static_cast<CompareScope>(scope);
  }
}

void draw_pair_text(const PairPayload& pair) {
  ImGui::PushTextWrapPos(0.0F);
  ImGui::TextDisabled("%s", pair.text().c_str());
  for (const std::string& difference : pair.differences) {
    ImGui::TextDisabled("%s", difference.c_str());
  }
  ImGui::PopTextWrapPos();
}

void draw_compare_panel(PanelContext& context) {
  ViewModel& model = context.model;
  if (model.overview() == nullptr) return explain_missing("No trace is open.");
  if (!model.other_trace()) {
    return explain_missing(
        "Open a second trace to compare with: Trace > Open, or drop it onto this window. From the "
        "command line: blockscope view a.h5 b.h5");
  }
  draw_pair_controls(context);
  draw_mode_controls(context);
  const auto pair = compare_pair(model);
  if (!ready_or_explain(pair)) return;
  draw_pair_text(*pair.value);
  switch (context.state.of<CompareState>().mode) {
    case 0:
      return draw_compared_heads(context);
    case 1:
      return draw_compared_steps(context);
    case 2:
      return draw_compared_tokens(context);
    default:
      return draw_compared_queries(context);
  }
}

std::optional<CsvTable> compare_panel_table(PanelContext& context) {
  ViewModel& model = context.model;
  const std::optional<std::size_t> other = model.other_trace();
  if (!other) return std::nullopt;
  const CompareState& state = context.state.of<CompareState>();
  const PanelMetric& choice = panel_metrics()[state.metric];
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

void show_comparison(PanelStates& states, std::size_t mode) {
  states.of<CompareState>().mode = static_cast<int>(mode);
}

}  // namespace

Panel compare_panel() {
  return {.name = "Compare",
          .draw = draw_compare_panel,
          .table = compare_panel_table,
          .show = {.words = {"heads", "steps", "tokens", "queries"}, .take_word = show_comparison}};
}

}  // namespace blockscope
