#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "analysis/figures/figures.h"
#include "analysis/figures/line_chart.h"
#include "analysis/figures/terms.h"

namespace blockscope {

std::optional<ReportFigure> recall_over_steps(const MetricResult& result) {
  const ResultArray recall = mean_over_others(result.array("recall"), {"k", "step"});
  if (range_of(recall).empty()) return std::nullopt;
  LineChart chart{.x_label = "denoising step t", .y_label = "recall r(t)"};
  chart.curves = curves_of(recall, "step", "k", "k = ");
  std::erase_if(chart.curves, [](const Curve& curve) {
    return std::ranges::none_of(curve.y, [](double y) { return std::isfinite(y); });
  });
  ReportFigure part;
  part.figure.name = "recall";
  part.figure.title = "How much of step 1's key set later steps still choose";
  part.figure.caption = fmt::format(
      "r(t) = |S*(1) \u2229 S*(t)| / k: the share of a block's top-k prefix positions at step 1 "
      "that are also in its top-k at step t. Mean over layers, KV heads and blocks. n = {} terms. "
      "As MAGE, Fig. 2.",
      count_text(total_terms(recall)));
  draw_chart(chart, part.figure);
  part.numbers = curve_numbers("step", chart.curves);
  const std::string none = report_number(std::nan(""));
  std::erase_if(part.numbers.rows, [&](const std::vector<std::string>& row) {
    return std::count(row.begin() + 1, row.end(), none) + 1 == std::ssize(row);  // step 1 has none
  });
  return part;
}

}  // namespace blockscope
