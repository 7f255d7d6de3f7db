// The Curves panel: a metric over the steps of a block, for the selected head and for kept heads.
// Also A_in and A_out per head (FlashBlock, arXiv 2602.05305, Fig. 5), recall for several k, and
// the distribution of union sizes.
#include <fmt/format.h>
#include <imgui.h>
#include <implot.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "viewer/model/panel_metrics.h"
#include "viewer/panels/curves_state.h"
#include "viewer/panels/metric_picker.h"
#include "viewer/panels/panels.h"
#include "viewer/panels/plot_axes.h"

namespace blockscope {
namespace {

using Mode = CurvesState::Mode;

/// Colours of kept heads and set sizes: Okabe and Ito without the two colours of A_out and A_in.
constexpr std::array<Colour, 6> kLineColours = {kGreen,
                                                kPurple,
                                                kSkyBlue,
                                                kVermilion,
                                                colour_of_text(okabe_ito::kYellow),
                                                colour_of_text(okabe_ito::kGrey)};

void plot_curve(const std::string& label, const HeadCurve& curve, const ImPlotSpec& spec) {
  ImPlot::PlotLine(label.c_str(), curve.steps.data(), curve.values.data(),
                   static_cast<int>(curve.steps.size()), spec);
}

ImPlotSpec strong(Colour colour, float scale) {
  ImPlotSpec spec;
  spec.LineColor = colour4(colour);
  spec.LineWeight = 2.5F * scale;
  spec.Marker = ImPlotMarker_Circle;
  return spec;
}

/// Puts the legend outside the plot, never on the data.
void legend_below() {
  ImPlot::SetupLegend(ImPlotLocation_South,
                      ImPlotLegendFlags_Outside | ImPlotLegendFlags_Horizontal);
}

/// Adds room around the outermost points.
bool begin_plot(const char* title) {
  ImPlot::PushStyleVar(ImPlotStyleVar_FitPadding, ImVec2(0.04F, 0.08F));
  if (ImPlot::BeginPlot(title, ImGui::GetContentRegionAvail())) return true;
  ImPlot::PopStyleVar();
  return false;
}
void end_plot() {
  ImPlot::EndPlot();
  ImPlot::PopStyleVar();
}

/// Marks the selected step; a double click selects another one.
void step_cursor(ViewModel& model) {
  if (model.step() == nullptr) return;
  ImPlot::TagX(static_cast<double>(model.step()->step), ImVec4(0.8F, 0.5F, 0.1F, 1.0F), "%d",
               model.step()->step);
  if (!ImPlot::IsPlotHovered() || !ImGui::IsMouseDoubleClicked(ImGuiMouseButton_Left)) return;
  const double x = ImPlot::GetPlotMousePos().x;
  Selection selection = model.selection();
  const auto& steps = model.block()->steps;
  const auto nearest = std::ranges::min_element(
      steps, {}, [&](const StepRef& step) { return std::abs(static_cast<double>(step.step) - x); });
  if (nearest == steps.end()) return;
  selection.step = static_cast<std::size_t>(nearest - steps.begin());
  model.select(selection);
}

/// FlashBlock's Fig. 5 for the selected layer.
void draw_bars(PanelContext& context, const std::shared_ptr<const MetricPayload>& data) {
  const TraceMeta& meta = context.model.overview()->info.meta;
  CurvesState& state = context.state.of<CurvesState>();
  const std::size_t layer = context.model.selection().layer;
  if (state.bars_of != data) {
    state.bars_of = data;
    state.external =
        head_grid(data->result, panel_metrics()[panel_metric("similarity_external")], meta);
    state.internal =
        head_grid(data->result, panel_metrics()[panel_metric("similarity_internal")], meta);
  }
  const std::string title = fmt::format("layer {}###bars", meta.layers[layer]);
  if (!begin_plot(title.c_str())) return;
  ImPlot::SetupAxes("head", "cosine of adjacent steps", ImPlotAxisFlags_AutoFit,
                    ImPlotAxisFlags_AutoFit);
  whole_numbers(ImAxis_X1);
  legend_below();
  // Dots, not bars: the values are close to 1, and bars must start at 0.
  for (const auto& [grid, colour, label] :
       {std::tuple(&state.internal, kInternalColour, "A_in (inside the block)"),
        std::tuple(&state.external, kExternalColour, "A_out (to the prefix)")}) {
    std::vector<double> values;
    std::vector<double> places;
    for (std::size_t head = 0; head < grid->columns; ++head) {
      const float value = grid->values[layer * grid->columns + head];
      if (std::isnan(value)) continue;  // no dot: nothing was measured
      values.push_back(static_cast<double>(value));
      places.push_back(static_cast<double>(meta.heads[head]));
    }
    ImPlotSpec spec;
    spec.LineColor = colour4(colour);
    spec.Marker = ImPlotMarker_Circle;
    spec.MarkerSize = 5.0F * context.scale;
    spec.MarkerFillColor = colour4(colour);
    ImPlot::PlotScatter(label, places.data(), values.data(), static_cast<int>(values.size()), spec);
  }
  end_plot();
}

void draw_over_steps(PanelContext& context, const std::shared_ptr<const MetricPayload>& data) {
  ViewModel& model = context.model;
  const TraceMeta& meta = model.overview()->info.meta;
  CurvesState& state = context.state.of<CurvesState>();
  const PanelMetric& choice = panel_metrics()[state.metric];
  if (state.curves_of != data || state.curves_metric != state.metric) {
    state.curves_of = data;
    state.curves_metric = state.metric;
    state.curves = head_curves(means_by_step(data->result, choice), meta);
  }
  const HeadCurves& curves = state.curves;
  const Selection& at = model.selection();
  const std::string title =
      fmt::format("{}, layer {}###curve", choice.view.label, meta.layers[at.layer]);
  if (!begin_plot(title.c_str())) return;
  ImPlot::SetupAxes("step in block", choice.view.unit, ImPlotAxisFlags_AutoFit,
                    ImPlotAxisFlags_AutoFit);
  whole_numbers(ImAxis_X1);
  legend_below();
  ImPlotSpec faint;
  faint.LineColor = ImVec4(0.55F, 0.55F, 0.55F, 0.6F);
  for (std::size_t head = 0; head < curves.heads; ++head) {
    if (head != at.head) plot_curve("other heads of the layer", curves.at(at.layer, head), faint);
  }
  std::size_t index = 0;
  for (const HeadSlot& kept : state.kept) {
    const Colour colour = kLineColours[index++ % kLineColours.size()];
    if (kept.layer >= meta.layers.size() || kept.head >= curves.heads) continue;
    ImPlotSpec spec = strong(colour, context.scale);
    spec.LineWeight = 1.8F * context.scale;
    plot_curve(fmt::format("layer {}, head {}", meta.layers[kept.layer], meta.heads[kept.head]),
               curves.at(kept.layer, kept.head), spec);
  }
  const HeadCurve& selected = curves.at(at.layer, at.head);
  plot_curve(fmt::format("head {} (n = {})###selected", meta.heads[at.head], selected.terms),
             selected, strong(kExternalColour, context.scale));
  step_cursor(model);
  end_plot();
}

/// The head whose sets are shown; nullopt: all heads.
std::optional<HeadSlot> shown_head(const PanelContext& context) {
  if (context.state.of<CurvesState>().together) return std::nullopt;
  return HeadSlot{context.model.selection().layer, context.model.selection().head};
}

void draw_recall(PanelContext& context, const std::shared_ptr<const MetricPayload>& data) {
  const TraceMeta& meta = context.model.overview()->info.meta;
  CurvesState& state = context.state.of<CurvesState>();
  const auto head = shown_head(context);
  if (state.recall_of != data || state.recall_head != head) {
    state.recall_of = data;
    state.recall_head = head;
    state.recall = recall_by_size(data->result, meta, head);
  }
  const std::int64_t terms = state.recall.empty() ? 0 : state.recall.front().curve.terms;
  const std::string title = fmt::format(
      "recall of step 1's set, {} (n = {})###recall",
      head ? fmt::format("layer {}, head {}", meta.layers[head->layer], meta.heads[head->head])
           : std::string("all heads"),
      terms);
  if (!begin_plot(title.c_str())) return;
  ImPlot::SetupAxes("step in block", "share of the set still chosen", ImPlotAxisFlags_AutoFit);
  whole_numbers(ImAxis_X1);
  ImPlot::SetupAxisLimits(ImAxis_Y1, 0.0, 1.05, ImPlotCond_Once);
  legend_below();
  std::size_t index = 0;
  for (const SizeCurve& line : state.recall) {
    plot_curve(fmt::format("k = {}", line.size), line.curve,
               strong(kLineColours[index++ % kLineColours.size()], context.scale));
  }
  step_cursor(context.model);
  end_plot();
}

void draw_unions(PanelContext& context, const std::shared_ptr<const MetricPayload>& data) {
  const TraceMeta& meta = context.model.overview()->info.meta;
  CurvesState& state = context.state.of<CurvesState>();
  const std::optional<std::size_t> layer =
      state.together ? std::nullopt : std::optional(context.model.selection().layer);
  if (state.unions_of != data || state.unions_layer != layer) {
    state.unions_of = data;
    state.unions_layer = layer;
    state.unions = union_distribution(data->result, layer);
  }
  const UnionDistribution& unions = state.unions;
  const std::string title =
      layer ? fmt::format("union of the tokens' sets, layer {}###unions", meta.layers[*layer])
            : std::string("union of the tokens' sets, all layers###unions");
  if (!begin_plot(title.c_str())) return;
  ImPlot::SetupAxes("|union| / k", "share of steps and KV heads", ImPlotAxisFlags_AutoFit,
                    ImPlotAxisFlags_AutoFit);
  legend_below();
  const double half = unions.width / 2;
  double shift = -half / 2;
  for (const auto& [values, terms, colour, label] :
       {std::tuple(&unions.all, unions.terms, kExternalColour, "all steps"),
        std::tuple(&unions.first, unions.first_terms, kInternalColour, "first steps")}) {
    std::vector<double> places = unions.centres;
    for (double& place : places) place += shift;
    ImPlotSpec spec;
    spec.FillColor = spec.LineColor = colour4(colour);
    ImPlot::PlotBars(fmt::format("{} (n = {:.0f})###{}", label, terms, label).c_str(),
                     places.data(), values->data(), static_cast<int>(places.size()), half * 0.9,
                     spec);
    shift += half;
  }
  end_plot();
}

/// "Keep" leaves the selected head's curve in the plot when another head is selected.
void keep_buttons(PanelContext& context) {
  CurvesState& state = context.state.of<CurvesState>();
  const HeadSlot here{context.model.selection().layer, context.model.selection().head};
  const auto found = std::ranges::find(state.kept, here);
  ImGui::SameLine();
  if (found == state.kept.end()) {
    if (ImGui::Button("Keep###keep")) state.kept.push_back(here);
    ImGui::SetItemTooltip("keep this head's curve while others are selected");
  } else if (ImGui::Button("Drop###keep")) {
    state.kept.erase(found);
  }
  if (state.kept.empty()) return;
  ImGui::SameLine();
  if (ImGui::Button("Drop all")) state.kept.clear();
}

/// The metric that a mode shows.
std::size_t metric_of(const CurvesState& state) {
  switch (state.mode) {
    case Mode::over_steps:
      return state.metric;
    case Mode::per_head:
      return panel_metric("similarity_external");
    case Mode::recall_sizes:
      return panel_metric("recall");
    case Mode::union_sizes:
      return panel_metric("union_size");
  }
  return state.metric;
}

void draw_curves_panel(PanelContext& context) {
  ViewModel& model = context.model;
  if (model.block() == nullptr) return explain_missing("No trace is open.");
  CurvesState& state = context.state.of<CurvesState>();
  constexpr const char* kPlotModes[] = {"over steps", "A_in, A_out per head",
                                        "recall for several k", "union sizes"};
  int mode = static_cast<int>(state.mode);
  ImGui::SetNextItemWidth(172.0F * context.scale);
  if (ImGui::Combo("##mode", &mode, kPlotModes, IM_ARRAYSIZE(kPlotModes))) state.mode = Mode{mode};
  ImGui::SameLine();
  pick_scope("##scope", state.scope, context.scale);
  if (state.mode == Mode::over_steps) {
    pick_metric("##metric", state.metric, context.scale);
    keep_buttons(context);
  } else if (state.mode != Mode::per_head) {
    ImGui::SameLine();
    ImGui::Checkbox(
        state.mode == Mode::recall_sizes ? "all heads###together" : "all layers###together",
        &state.together);
  }
  const PanelMetric& choice = panel_metrics()[metric_of(state)];
  if (!has_metric(model.overview()->info.meta, choice)) return;
  // Summaries have only one k.
  const auto data = model.metric("curves", choice.metric, state.scope,
                                 /*from_summary=*/state.mode != Mode::recall_sizes);
  if (!ready_or_explain(data)) return;
  switch (state.mode) {
    case Mode::over_steps:
      return draw_over_steps(context, data.value);
    case Mode::per_head:
      return draw_bars(context, data.value);
    case Mode::recall_sizes:
      return draw_recall(context, data.value);
    case Mode::union_sizes:
      return draw_unions(context, data.value);
  }
}

std::optional<CsvTable> curves_panel_table(PanelContext& context) {
  if (context.model.block() == nullptr) return std::nullopt;
  const CurvesState& state = context.state.of<CurvesState>();
  const TraceMeta& meta = context.model.overview()->info.meta;
  const std::size_t layer = context.model.selection().layer;
  switch (state.mode) {
    case CurvesState::Mode::over_steps:
      if (!state.curves_of) return std::nullopt;
      return curves_table(means_by_step(state.curves_of->result, panel_metrics()[state.metric]),
                          panel_metrics()[state.metric], meta, layer);
    case CurvesState::Mode::per_head:
      if (!state.bars_of) return std::nullopt;
      return sides_table(state.external, state.internal, meta);
    case CurvesState::Mode::recall_sizes:
      return recall_table(state.recall);
    case CurvesState::Mode::union_sizes:
      return unions_table(state.unions);
  }
  return std::nullopt;
}

/// Selects a mode that shows no metric over steps.
void show_curves(PanelStates& states, std::size_t word) {
  states.of<CurvesState>().mode = static_cast<Mode>(word + 1);
}

void show_curves_metric(PanelStates& states, std::size_t metric) {
  states.of<CurvesState>().mode = Mode::over_steps;
  states.of<CurvesState>().metric = metric;
}

void show_curves_scope(PanelStates& states, ViewModel::Scope scope) {
  states.of<CurvesState>().scope = scope;
}

}  // namespace

Panel curves_panel() {
  return {.name = "Curves",
          .draw = draw_curves_panel,
          .table = curves_panel_table,
          .place = PanelPlace::bottom_middle,
          .show = {.words = {"heads", "recall-sizes", "unions"},
                   .take_word = show_curves,
                   .take_metric = show_curves_metric,
                   .take_scope = show_curves_scope}};
}

}  // namespace blockscope
