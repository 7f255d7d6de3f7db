#include <fmt/format.h>

#include "analysis/figures/figures.h"
#include "analysis/figures/line_chart.h"
#include "analysis/figures/terms.h"

namespace blockscope {

std::optional<ReportFigure> settled_by_share(const MetricResult& result) {
  const ResultArray& settled = result.array("settled_by");
  if (range_of(settled).empty()) return std::nullopt;
  LineChart chart{.x_label = "share of the steps of a block", .y_label = "share of the positions"};
  chart.curves.push_back({"settled", settled.axes[0].index, settled.values});
  ReportFigure part;
  part.figure.name = "settled-by";
  part.figure.title = "When the final token is known";
  part.figure.caption = fmt::format(
      "A position is settled at the first step from which every prediction of it is the token that "
      "it gets. The figure shows the share of the positions that are settled after a share of "
      "their "
      "block's steps. n = {} positions.",
      count_text(settled.terms.front()));
  draw_chart(chart, part.figure);
  part.numbers = curve_numbers("share of the steps", chart.curves);
  return part;
}

std::optional<ReportTable> settling_means(const MetricResult& result) {
  const ResultArray& means = result.array("means");
  if (range_of(means).empty()) return std::nullopt;
  ReportTable part;
  part.name = "settling";
  part.title = "Settling and order";
  part.caption =
      "Flips: changes of a position's prediction before it is decided. AR-ness: local, decided "
      "right "
      "after the position on its left; global, decided while the first mask of its block.";
  part.table.header = {"", "mean", "n"};
  const auto add = [&](const std::string& name, const ResultArray& array, std::size_t i) {
    part.table.rows.push_back({name, report_number(array.values[i]), count_text(array.terms[i])});
  };
  for (std::size_t i = 0; i < means.values.size(); ++i) add(means.axes[0].label(i), means, i);
  add("local AR-ness", result.array("ar_local"), 0);
  add("global AR-ness", result.array("ar_global"), 0);
  return part;
}

}  // namespace blockscope
