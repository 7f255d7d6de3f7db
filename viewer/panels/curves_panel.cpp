// The Curves panel: a metric over the steps of a block for the selected head and the mean of its
// layer; or per head, A_in beside A_out (FlashBlock, arXiv 2602.05305, Fig. 5).
#include <fmt/format.h>
#include <imgui.h>
#include <implot.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "viewer/metric_choice.h"
#include "viewer/panels/metric_picker.h"
#include "viewer/panels/panels.h"

namespace blockscope {
namespace {

ImVec4 colour4(Colour colour) { return ImGui::ColorConvertU32ToFloat4(colour); }

void draw_bars(PanelContext& context, const MetricResult& result) {
  const TraceMeta& meta = context.model.overview()->info.meta;
  const std::size_t layer = context.model.selection().layer;
  const std::string title = fmt::format("layer {}###bars", meta.layers[layer]);
  if (!ImPlot::BeginPlot(title.c_str(), ImGui::GetContentRegionAvail())) return;
  ImPlot::SetupAxes("head", "cosine of adjacent steps");
  const double heads = static_cast<double>(meta.heads.size());
  ImPlot::SetupAxesLimits(-0.6, heads - 0.4, 0.0, 1.05, ImPlotCond_Once);
  ImPlot::SetupLegend(ImPlotLocation_SouthEast);
  constexpr double kWidth = 0.38;
  const std::array<std::pair<const MetricChoice*, Colour>, 2> sides = {
      {{&kMetricChoices[1], kInternalColour}, {&kMetricChoices[0], kExternalColour}}};
  double shift = -kWidth / 2;
  for (const auto& [choice, colour] : sides) {
    const SimilarityMatrix grid = head_grid(result, *choice, meta);
    std::vector<double> values(grid.columns);
    std::vector<double> places(grid.columns);
    for (std::size_t head = 0; head < grid.columns; ++head) {
      const float value = grid.values[layer * grid.columns + head];
      values[head] = std::isnan(value) ? 0.0 : static_cast<double>(value);
      places[head] = static_cast<double>(head) + shift;
    }
    ImPlotSpec spec;
    spec.FillColor = colour4(colour);
    spec.LineColor = colour4(colour);
    ImPlot::PlotBars(choice->label, places.data(), values.data(), static_cast<int>(values.size()),
                     kWidth, spec);
    shift += kWidth;
  }
  ImPlot::EndPlot();
}

const std::vector<Curve>& curves_of_layer(PanelState::Curves& state,
                                          const std::shared_ptr<const MetricPayload>& payload,
                                          const TraceMeta& meta, std::size_t layer) {
  if (state.drawn_of == payload && state.drawn_metric == state.metric &&
      state.drawn_layer == layer) {
    return state.drawn;
  }
  state.drawn.clear();
  for (std::size_t head = 0; head < meta.heads.size(); ++head) {
    state.drawn.push_back(
        head_curve(payload->result, kMetricChoices[state.metric], meta, layer, head));
  }
  state.drawn_of = payload;
  state.drawn_metric = state.metric;
  state.drawn_layer = layer;
  return state.drawn;
}

void draw_curves(PanelContext& context, const std::shared_ptr<const MetricPayload>& payload,
                 const MetricChoice& choice) {
  ViewModel& model = context.model;
  const TraceMeta& meta = model.overview()->info.meta;
  const Selection& at = model.selection();
  const std::vector<Curve>& curves = curves_of_layer(context.state.curves, payload, meta, at.layer);
  const Curve& curve = curves[at.head];
  const std::string title =
      fmt::format("{}, layer {}###curve", choice.label, meta.layers[at.layer]);
  if (!ImPlot::BeginPlot(title.c_str(), ImGui::GetContentRegionAvail())) return;
  ImPlot::SetupAxes("step in block", choice.unit, ImPlotAxisFlags_AutoFit, ImPlotAxisFlags_AutoFit);
  ImPlot::SetupLegend(ImPlotLocation_SouthWest);
  // All heads of the layer in grey, the selected one in colour.
  for (std::size_t head = 0; head < meta.heads.size(); ++head) {
    const bool selected = head == at.head;
    if (selected) continue;
    const Curve& other = curves[head];
    ImPlotSpec spec;
    spec.LineColor = ImVec4(0.55F, 0.55F, 0.55F, 0.6F);
    ImPlot::PlotLine("other heads", other.steps.data(), other.values.data(),
                     static_cast<int>(other.steps.size()), spec);
  }
  ImPlotSpec spec;
  spec.LineColor = colour4(kExternalColour);
  spec.LineWeight = 2.5F * context.scale;
  spec.Marker = ImPlotMarker_Circle;
  const std::string label = fmt::format("head {} (n = {})", meta.heads[at.head], curve.terms);
  ImPlot::PlotLine(label.c_str(), curve.steps.data(), curve.values.data(),
                   static_cast<int>(curve.steps.size()), spec);
  if (model.step() != nullptr) {
    ImPlot::TagX(static_cast<double>(model.step()->step), ImVec4(0.8F, 0.5F, 0.1F, 1.0F), "%d",
                 model.step()->step);
  }
  ImPlot::EndPlot();
}

}  // namespace

void draw_curves_panel(PanelContext& context) {
  ViewModel& model = context.model;
  if (model.block() == nullptr) return explain_missing("No trace is open.");
  PanelState::Curves& state = context.state.curves;
  ImGui::Checkbox("per head", &state.bars);
  ImGui::SameLine();
  if (!state.bars) {
    pick_metric("##metric", state.metric, context.scale);
    ImGui::SameLine();
  }
  pick_scope("##scope", state.scope, context.scale);
  const MetricChoice& choice = kMetricChoices[state.bars ? 0 : state.metric];
  if (!has_level_for(model.overview()->info.meta, choice)) return;
  const auto data = model.metric("curves", choice.metric, state.scope);
  if (!ready_or_explain(data)) return;
  if (state.bars) {
    draw_bars(context, data.value->result);
  } else {
    draw_curves(context, data.value, choice);
  }
}

}  // namespace blockscope
