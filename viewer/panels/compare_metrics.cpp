// One metric of two traces: layer x head grids and curves over steps, and the difference B - A.
#include <fmt/format.h>
#include <imgui.h>
#include <implot.h>

#include <algorithm>
#include <cmath>

#include "viewer/model/comparison.h"
#include "viewer/panels/compare_views.h"
#include "viewer/panels/heatmap_plot.h"

#include "viewer/panels/plot_axes.h"

namespace blockscope {
namespace {

struct GridPlace {
  const char* id;
  const char* title;
  float width, height;
  const TraceMeta* meta;  ///< of the trace that these layers and heads belong to
};

/// A trace's recorded slot of a layer or head of the model.
std::optional<std::size_t> slot_of(const std::vector<std::int64_t>& recorded, std::int64_t wanted) {
  const auto found = std::ranges::find(recorded, wanted);
  if (found == recorded.end()) return std::nullopt;
  return static_cast<std::size_t>(found - recorded.begin());
}

/// A grid with the selected head marked; a click selects.
void draw_grid(PanelContext& context, const GridPlace& place,
               const std::shared_ptr<const MatrixPayload>& grid, HeatmapPlot plot,
               const std::string& why_not) {
  ImGui::BeginChild(place.id, ImVec2(place.width, place.height));
  if (!grid) {
    explain_missing(fmt::format("{}: {}", place.title, why_not));
  } else {
    plot.id = place.id;
    plot.title = fmt::format("{}###{}", place.title, place.id);
    plot.x_label = "head";
    plot.y_label = "layer";
    plot.width = place.width;
    plot.height = ImGui::GetContentRegionAvail().y;
    // The grid's trace may have recorded different layers and heads from the selected trace.
    const TraceMeta& active = context.model.overview()->info.meta;
    plot.x_numbers = &place.meta->heads;
    plot.y_numbers = &place.meta->layers;
    const auto head = slot_of(place.meta->heads, active.heads[context.model.selection().head]);
    const auto layer = slot_of(place.meta->layers, active.layers[context.model.selection().layer]);
    if (head && layer) {
      plot.mark_x = static_cast<double>(*head);
      plot.mark_y = static_cast<double>(*layer);
    }
    const auto hit = draw_heatmap(context, plot, grid);
    if (hit && hit->clicked) {
      Selection selection = context.model.selection();
      selection.layer =
          slot_of(active.layers, place.meta->layers[hit->row]).value_or(selection.layer);
      selection.head =
          slot_of(active.heads, place.meta->heads[hit->column]).value_or(selection.head);
      context.model.select(selection);
    }
  }
  ImGui::EndChild();
}

/// Why there is no difference.
std::string no_difference(const MetricComparison& data) {
  if (!data.grid_a || !data.grid_b) return "only one side has values";
  return "the models have different layers and heads, so their cells do not correspond";
}

void plot_curve(const char* label, const HeadCurve& curve, Colour colour) {
  ImPlotSpec spec;
  spec.LineColor = colour4(colour);
  spec.LineWeight = 2.0F;
  spec.Marker = ImPlotMarker_Circle;
  ImPlot::PlotLine(fmt::format("{} (n = {})", label, curve.terms).c_str(), curve.steps.data(),
                   curve.values.data(), static_cast<int>(curve.steps.size()), spec);
}

}  // namespace

void draw_compared_heads(PanelContext& context) {
  const CompareState& state = context.state.of<CompareState>();
  const auto data = compare_metric(context.model, state.metric, state.scope);
  if (!ready_or_explain(data)) return;
  const MetricComparison& both = *data.value;
  const TraceMeta& meta_a = context.model.overview()->info.meta;
  const auto b = context.model.other_trace();
  const TraceMeta& meta_b = b ? context.model.documents()[*b].overview->info.meta : meta_a;
  const PanelMetric& choice = panel_metrics()[state.metric];
  HeatmapPlot plot;
  plot.unit = choice.view.unit;
  // A and B share one range. The difference has its own, with 0 in the middle.
  if (both.grid_a && both.grid_b) {
    plot.low = std::min(both.grid_a->low, both.grid_b->low);
    plot.high = std::max(both.grid_a->high, both.grid_b->high);
  }
  const ImVec2 space = ImGui::GetContentRegionAvail();
  const float gap = ImGui::GetStyle().ItemSpacing.x;
  const float width = (space.x - 2.0F * gap) / 3.0F;
  draw_grid(context, {"compare-grid-a", "A", width, space.y, &meta_a}, both.grid_a, plot,
            both.problem_a);
  ImGui::SameLine();
  draw_grid(context, {"compare-grid-b", "B", width, space.y, &meta_b}, both.grid_b, plot,
            both.problem_b);
  ImGui::SameLine();
  static const Colormap kDiverging("coolwarm");
  PanelContext diverging{context.model, context.appearance, context.state,   context.textures,
                         kDiverging,    context.outlet,     context.browser, context.scale};
  plot.own_range = true;
  if (both.grid_difference) {
    const float largest =
        std::max(std::abs(both.grid_difference->low), std::abs(both.grid_difference->high));
    const float limit = std::isfinite(largest) && largest > 0.0F ? largest : 1e-6F;
    plot.low = -limit;
    plot.high = limit;
  }
  ImPlot::PushColormap(kDiverging.name().c_str());
  draw_grid(diverging, {"compare-grid-difference", "B - A", width, space.y, &meta_a},
            both.grid_difference, plot, no_difference(both));
  ImPlot::PopColormap();
}

void draw_compared_steps(PanelContext& context) {
  ViewModel& model = context.model;
  const CompareState& state = context.state.of<CompareState>();
  const auto data = compare_metric(model, state.metric, state.scope);
  if (!ready_or_explain(data)) return;
  const MetricComparison& both = *data.value;
  const PanelMetric& choice = panel_metrics()[state.metric];
  for (const auto& [side, problem] :
       {std::pair("A", &both.problem_a), std::pair("B", &both.problem_b)}) {
    if (!problem->empty()) explain_missing(fmt::format("{}: {}", side, *problem));
  }
  const TraceMeta& meta = model.overview()->info.meta;
  const TraceMeta& other = model.documents()[*model.other_trace()].overview->info.meta;
  const Selection& at = model.selection();
  const auto layer = slot_of(other.layers, meta.layers[at.layer]);
  const auto head = slot_of(other.heads, meta.heads[at.head]);
  const ImVec2 space = ImGui::GetContentRegionAvail();
  const bool has_difference = !both.by_step_difference.axes.empty();
  const float height = has_difference ? space.y * 0.6F : space.y;
  const std::string title = fmt::format("{}, layer {}, head {}###compare-curves", choice.view.label,
                                        meta.layers[at.layer], meta.heads[at.head]);
  if (ImPlot::BeginPlot(title.c_str(), ImVec2(space.x, height))) {
    ImPlot::SetupAxes("step in block", choice.view.unit, ImPlotAxisFlags_AutoFit,
                      ImPlotAxisFlags_AutoFit);
    whole_numbers(ImAxis_X1);
    ImPlot::SetupLegend(ImPlotLocation_SouthWest);
    plot_curve("A", head_curve(both.by_step_a, meta, at.layer, at.head), kExternalColour);
    if (layer && head) {
      plot_curve("B", head_curve(both.by_step_b, other, *layer, *head), kInternalColour);
    }
    ImPlot::EndPlot();
  }
  if (!has_difference) return;
  if (ImPlot::BeginPlot("##compare-difference", ImVec2(space.x, ImGui::GetContentRegionAvail().y),
                        ImPlotFlags_NoTitle)) {
    ImPlot::SetupAxes("step in block", "B - A", ImPlotAxisFlags_AutoFit, ImPlotAxisFlags_AutoFit);
    whole_numbers(ImAxis_X1);
    ImPlot::SetupLegend(ImPlotLocation_SouthWest);
    const double zero = 0.0;
    ImPlotSpec line;
    line.Flags = ImPlotInfLinesFlags_Horizontal;
    line.LineColor = ImVec4(0.55F, 0.55F, 0.55F, 0.8F);
    ImPlot::PlotInfLines("##zero", &zero, 1, line);
    plot_curve("B - A", head_curve(both.by_step_difference, meta, at.layer, at.head), 0xFF7A9E00);
    ImPlot::EndPlot();
  }
}

}  // namespace blockscope
