#include <fmt/format.h>

#include <cmath>

#include "analysis/figures/figures.h"
#include "analysis/figures/line_chart.h"
#include "analysis/figures/palette.h"
#include "analysis/figures/panels.h"
#include "analysis/figures/terms.h"

namespace blockscope {

std::optional<ReportFigure> similarity_over_steps(const MetricResult& result) {
  const ResultArray external = mean_over_others(result.array("similarity_external"), {"step"});
  const ResultArray internal = mean_over_others(result.array("similarity_internal"), {"step"});
  const double least = std::fmin(range_of(external).least, range_of(internal).least);
  if (!std::isfinite(least)) return std::nullopt;
  LineChart chart{.x_label = "step s of the pair s, s+1", .y_label = "mean cosine"};
  chart.y_lower = round_down_to(least, 1.0);
  chart.curves = curves_of(external, "step", "", "A_{out}");
  chart.curves.push_back(curves_of(internal, "step", "", "A_{in}").at(0));
  chart.curves[0].color = kExternalColor;
  chart.curves[1].color = kInternalColor;
  ReportFigure part;
  part.figure.name = "similarity-over-steps";
  part.figure.title = "Cross-step similarity over the steps of a block";
  part.figure.caption = fmt::format(
      "Mean over layers, heads, blocks and positions. {}n = {} "
      "comparisons for A_out, {} for A_in. Only blocks that took so many steps have late ones.",
      axis_start_text(chart.y_lower), count_text(total_terms(external)),
      count_text(total_terms(internal)));
  draw_chart(chart, part.figure);
  chart.curves[0].title = "A_out";
  chart.curves[1].title = "A_in";
  part.numbers = curve_numbers("step", chart.curves);
  part.numbers.header.push_back("terms of A_out");
  for (std::size_t i = 0; i < part.numbers.rows.size() && i < external.values.size(); ++i) {
    part.numbers.rows[i].push_back(terms_text(external, {i}));
  }
  return part;
}

}  // namespace blockscope
