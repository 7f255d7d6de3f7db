#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "analysis/figures/figures.h"
#include "analysis/figures/line_chart.h"
#include "analysis/figures/terms.h"

namespace blockscope {

std::optional<ReportFigure> sinks_over_steps(const MetricResult& result) {
  constexpr std::array<std::pair<const char*, const char*>, 3> kShown{
      {{"kept", "still a sink"},
       {"sink_mass", "mass on sinks"},
       {"shared", "heads that share one"}}};
  LineChart chart{.x_label = "denoising step t", .y_label = "share"};
  for (const auto& [array, name] : kShown) {
    const ResultArray means = mean_over_others(result.array(array), {"step"});
    if (range_of(means).empty()) continue;
    chart.curves.push_back({name, means.axes[0].index, means.values});
  }
  if (chart.curves.empty()) return std::nullopt;
  ReportFigure part;
  part.figure.name = "sinks";
  part.figure.title = "How long attention sinks stay";
  part.figure.caption = fmt::format(
      "A sink is a prefix key whose mean probability is well above that of the others: {}. "
      "Still a sink: share of the previous step's sinks. Mass: probability that the sinks receive. "
      "Shared: share of a layer's KV heads that have the same sink. Means over layers, KV heads "
      "and "
      "blocks. n = {} rows and heads.",
      result.formula, count_text(total_terms(result.array("sinks"))));
  draw_chart(chart, part.figure);
  part.numbers = curve_numbers("step", chart.curves);
  return part;
}

std::optional<ReportTable> sinks_by_layer(const MetricResult& result) {
  if (range_of(result.array("sinks")).empty()) return std::nullopt;
  ReportTable part;
  part.name = "sinks-by-layer";
  part.title = "Sinks, layer by layer";
  part.caption = fmt::format(
      "Number of sinks of a KV head, the probability that they receive, how many steps in a row a "
      "key stays a sink, how far the strongest sink moves within a block (standard deviation, as a "
      "share of the prefix), and the share of the sinks in the first tenth of the prefix. n = {} "
      "rows "
      "and heads.",
      count_text(total_terms(result.array("sinks"))));
  part.table.header = {"layer", "sinks", "mass", "steps in a row", "moved", "in the first tenth"};
  const ResultArray sinks = mean_over_others(result.array("sinks"), {"layer"});
  const ResultArray mass = mean_over_others(result.array("sink_mass"), {"layer"});
  const ResultArray lifetime = mean_over_others(result.array("lifetime"), {"layer"});
  const ResultArray moved = mean_over_others(result.array("moved"), {"layer"});
  const ResultArray& places = result.array("places");
  const bool norms =
      std::ranges::find(result.arrays, "value_norm", &ResultArray::name) != result.arrays.end();
  ResultArray value_norm;
  if (norms) {
    part.table.header.push_back("value norm");
    part.caption +=
        " Value norm: mean norm of the sinks' values, divided by that of the other keys "
        "in the set.";
    value_norm = mean_over_others(result.array("value_norm"), {"layer"});
  }
  for (std::size_t layer = 0; layer < sinks.values.size(); ++layer) {
    part.table.rows.push_back(
        {sinks.axes[0].label(layer), report_number(sinks.values[layer]),
         report_number(mass.values[layer]), report_number(lifetime.values[layer]),
         report_number(moved.values[layer]), report_number(places.at({layer, 0}))});
    if (norms) part.table.rows.back().push_back(report_number(value_norm.values[layer]));
  }
  return part;
}

}  // namespace blockscope
