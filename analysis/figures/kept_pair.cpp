#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "analysis/figures/figures.h"
#include "analysis/figures/line_chart.h"
#include "analysis/figures/panels.h"
#include "analysis/figures/terms.h"

namespace blockscope {
namespace {

/// Mean similarity of all rows by age, a curve per tau; and that of adjacent steps.
LineChart similarity_chart(const MetricResult& result, const MetricResult* similarity) {
  LineChart chart{.x_label = "age of the kept pair in steps", .y_label = "mean cosine of A_{out}"};
  const ResultArray all = part_at(result.array("similarity_kept_age"), "rows", "all");
  chart.curves = curves_of(mean_over_others(all, {"tau", "age"}), "age", "tau", "\u03c4 = ");
  std::erase_if(chart.curves, [](const Curve& curve) { return !has_values(curve); });
  if (chart.curves.empty()) return chart;
  double least = 1.0;
  if (similarity != nullptr) {
    const ResultArray adjacent = mean_over_others(similarity->array("similarity_external"), {});
    Curve line{"adjacent steps", chart.curves[0].x, {}, ""};
    line.y.assign(line.x.size(), adjacent.values.at(0));
    line.point_size = 0.0;
    if (has_values(line)) chart.curves.push_back(std::move(line));
  }
  for (const Curve& curve : chart.curves) {
    for (const double y : curve.y) least = std::fmin(least, y);
  }
  chart.y_lower = round_down_to(least, 1.0);
  return chart;
}

/// The error per layer, a curve per kind of row, for the smallest tau with values.
LineChart error_chart(const MetricResult& result, std::string& tau) {
  LineChart chart{.x_label = "layer", .y_label = "relative L2 error"};
  const ResultArray& error = result.array("kept_error_layer");
  const ResultAxis& taus = error.axes[error.axis("tau")];
  for (std::size_t t = 0; t < taus.size() && chart.curves.empty(); ++t) {
    const ResultArray one = select(error, "tau", {taus.index[t]});
    chart.curves = curves_of(mean_over_others(one, {"rows", "layer"}), "layer", "rows", "");
    std::erase_if(chart.curves, [](const Curve& curve) { return !has_values(curve); });
    tau = taus.label(t);
  }
  for (Curve& curve : chart.curves) {
    for (std::size_t i = 0; i < curve.x.size(); ++i) curve.x[i] = static_cast<double>(i);
  }
  chart.x_names = labels_of(error.axes[error.axis("layer")]);
  chart.y_upper = round_up_to(largest_of(chart.curves));
  return chart;
}

}  // namespace

std::optional<ReportFigure> kept_by_age(const MetricResult& result,
                                        const MetricResult* similarity) {
  LineChart ages = similarity_chart(result, similarity);
  std::string tau;
  const LineChart errors = error_chart(result, tau);
  if (ages.curves.empty() || errors.curves.empty()) return std::nullopt;
  ReportFigure part;
  part.numbers = curve_numbers("age", ages.curves);
  ages.curves = merge_equal(ages.curves, "\u03c4 = ");
  Panels panels{.count = 2, .columns = 2, .plot_width = 350, .plot_height = 220};
  panels.gap_x = 84;
  panels.top = 66;                   // five curves
  const auto key = [&](int right) {  // above the plot
    return fmt::format("set key horizontal right top at {}\n", panels.at(right, 4));
  };
  std::string script = "set multiplot\n" + panels.place(0) + key(panels.left + panels.plot_width);
  script += chart_commands(ages, "similarity.tsv") + panels.place(1);
  script += key(panels.width() - panels.right) + chart_commands(errors, "error.tsv");
  script += "unset multiplot\n";
  part.figure = {
      .name = "kept-pair",
      .title = "How far A_out is from the kept one",
      .caption = fmt::format(
          "A reusing step takes the A_out of the last step that read the prefix, the kept one. "
          "Left: cosine of the step's exact A_out and the kept one, by the number of steps since "
          "that read. {}Right: reuse error at \u03c4 = {} by what became of a row since that read: "
          "still undecided, known before it, or decided since. A row that was decided since takes "
          "the A_out from before. n = {} rows.",
          axis_start_text(ages.y_lower), tau,
          count_text(total_terms(part_at(result.array("similarity_kept_head"), "rows", "all")))),
      .width = panels.width(),
      .height = panels.height(),
      .script = script,
      .data = {{"similarity.tsv", chart_data(ages)}, {"error.tsv", chart_data(errors)}}};
  return part;
}

}  // namespace blockscope
