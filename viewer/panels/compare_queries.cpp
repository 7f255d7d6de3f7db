// The five stages of query statistics of two traces of the same tokens (MAGE, arXiv 2602.14209,
// Table 2), and how each changes with layer and step.
#include <fmt/format.h>
#include <imgui.h>
#include <implot.h>

#include <array>
#include <cmath>

#include "viewer/model/comparison.h"
#include "viewer/panels/compare_views.h"

#include "viewer/panels/plot_axes.h"

namespace blockscope {
namespace {

std::string number(double value, const char* format) {
  return std::isnan(value) ? "-" : fmt::format(fmt::runtime(format), value);
}

void draw_table(const MetricResult& result) {
  const ResultArray& stages = result.array("stages");
  const ResultArray& change = result.array("relative_change");
  if (!ImGui::BeginTable("compare-stages", 5,
                         ImGuiTableFlags_RowBg | ImGuiTableFlags_BordersInnerV |
                             ImGuiTableFlags_SizingStretchProp)) {
    return;
  }
  for (const char* name : {"stage", "A (trained)", "B (backbone)", "(A - B) / |B|", "terms A, B"}) {
    ImGui::TableSetupColumn(name);
  }
  ImGui::TableHeadersRow();
  const auto cell = [](const std::string& text) {
    ImGui::TableNextColumn();
    ImGui::TextUnformatted(text.c_str());
  };
  for (std::size_t i = 0; i < stages.axes.at(0).size(); ++i) {
    cell(stages.axes[0].label(i));
    cell(number(stages.values.at(2 * i), "{:.4f}"));
    cell(number(stages.values.at(2 * i + 1), "{:.4f}"));
    cell(number(100 * change.values.at(i), "{:+.1f} %"));
    cell(stages.terms.empty()
             ? ""
             : fmt::format("{}, {}", stages.terms.at(2 * i), stages.terms.at(2 * i + 1)));
  }
  ImGui::EndTable();
}

/// An array [model, layer or step] as two curves.
void draw_sides(const MetricResult& result, const char* name, const char* title, ImVec2 size) {
  const ResultArray* array = result.find(name);
  if (array == nullptr || array->axes.size() != 2) return;
  const std::vector<double>& x = array->axes[1].index;
  if (!ImPlot::BeginPlot(fmt::format("{}###compare-{}", title, name).c_str(), size)) return;
  ImPlot::SetupAxes(array->axes[1].name.c_str(), array->unit.c_str(), ImPlotAxisFlags_AutoFit,
                    ImPlotAxisFlags_AutoFit);
  whole_numbers(ImAxis_X1);
  constexpr std::array<std::pair<const char*, Colour>, 2> kSides = {
      {{"A", kExternalColour}, {"B", kInternalColour}}};
  for (std::size_t side = 0; side < kSides.size(); ++side) {
    ImPlotSpec spec;
    spec.LineColor = ImGui::ColorConvertU32ToFloat4(kSides[side].second);
    spec.LineWeight = 2.0F;
    spec.Marker = ImPlotMarker_Circle;
    ImPlot::PlotLine(kSides[side].first, x.data(), array->values.data() + side * x.size(),
                     static_cast<int>(x.size()), spec);
  }
  ImPlot::EndPlot();
}

}  // namespace

void draw_compared_queries(PanelContext& context) {
  const auto data = compare_queries(context.model);
  if (!ready_or_explain(data)) return;
  const MetricResult& result = data.value->result;
  draw_table(result);
  for (const auto& [reason, count] : result.left_out) {
    ImGui::TextDisabled("left out: %s (%lld)", reason.c_str(), static_cast<long long>(count));
  }
  const ImVec2 space = ImGui::GetContentRegionAvail();
  const ImVec2 size((space.x - ImGui::GetStyle().ItemSpacing.x) / 2.0F, space.y);
  draw_sides(result, "kl", "S1: KL to step 1", size);
  ImGui::SameLine();
  draw_sides(result, "query_gap", "S3: query gap to step 1", size);
}

}  // namespace blockscope
