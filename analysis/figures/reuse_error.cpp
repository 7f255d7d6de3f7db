#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "analysis/figures/figures.h"
#include "analysis/figures/line_chart.h"
#include "analysis/figures/panels.h"
#include "analysis/figures/terms.h"

namespace blockscope {
namespace {

/// A round number below the smallest gamma at which a head stops reusing. Below it nothing changes.
std::optional<double> where_heads_differ(const std::vector<ReuseCurve>& curves) {
  double first = 1.0;
  for (const ReuseCurve& curve : curves) {
    if (curve.points.size() > 1) first = std::min(first, curve.points[1].gamma);
  }
  if (first >= 1.0) return std::nullopt;
  return round_down_to(first - 0.1 * (1.0 - first), 1.0);
}

/// Both charts side by side. `terms`: the largest number of terms of an error.
Figure gamma_figure(const LineChart& saving, const LineChart& error, std::int64_t terms) {
  Panels panels{.count = 2, .columns = 2, .plot_width = 350, .plot_height = 220};
  panels.gap_x = 84;
  std::string script = "set multiplot\n" + panels.place(0);
  script += fmt::format("set key horizontal right top at {}\n",
                        panels.at(panels.width() - panels.right, 4));
  script += chart_commands(saving, "saving.tsv") + "unset key\n" + panels.place(1);
  script += chart_commands(error, "error.tsv") + "unset multiplot\n";
  return {
      .name = "gamma-curve",
      .title = "What \u03b3 saves and costs",
      .caption = fmt::format(
          "Left: share of the prefix's key and value bytes that would not be read. A KV head's "
          "bytes are saved only if all its query heads reuse. Right: error where reused, which is "
          "the one-step relative L2 error of the attention output over the heads and steps that "
          "reuse. The numbers below also have the error over all heads and steps. Heads reuse if "
          "their calibrated similarity is above \u03b3 (left of the axis: all of them), at steps "
          "before which fewer than \u03c4 tokens were counted. Predicted from this trace alone. n "
          "= up to {} "
          "terms.",
          count_text(terms)),
      .width = panels.width(),
      .height = panels.height(),
      .script = script,
      .data = {{"saving.tsv", chart_data(saving)}, {"error.tsv", chart_data(error)}}};
}

}  // namespace

std::optional<ReportFigure> reuse_error_by_layer(const MetricResult& result) {
  const ResultArray& error = result.array("relative_l2_layer");
  const std::size_t layers = error.axes[error.axis("layer")].size();
  LineChart chart{.x_label = "layer", .y_label = "relative L2 error"};
  chart.curves = curves_of(error, "layer", "tau", "\u03c4 = ");
  std::erase_if(chart.curves, [](const Curve& curve) { return !has_values(curve); });
  if (chart.curves.empty()) return std::nullopt;
  for (Curve& curve : chart.curves) {
    for (std::size_t i = 0; i < layers; ++i) curve.x[i] = static_cast<double>(i);
  }
  chart.x_names = labels_of(error.axes[error.axis("layer")]);
  chart.y_upper = round_up_to(largest_of(chart.curves));
  ReportFigure part;
  part.figure.name = "reuse-error";
  part.figure.title = "One-step reuse error per layer";
  part.figure.caption = fmt::format(
      "Relative L2 error of the attention output if every head reused A_out. Once \u03c4 tokens "
      "are counted, a step reads the prefix again. The steps after it reuse its A_out. The error "
      "is sqrt(\u03a3e\u00b2 / \u03a3ref\u00b2) over a layer's heads and the steps that may reuse. "
      "It is one-step: it does not propagate to later layers or steps. n = {} terms.",
      count_text(total_terms(error)));
  part.numbers = curve_numbers("layer", chart.curves);
  chart.curves = merge_equal(chart.curves, "\u03c4 = ");
  draw_chart(chart, part.figure);
  for (std::size_t i = 0; i < part.numbers.rows.size(); ++i) {
    part.numbers.rows[i][0] = chart.x_names.at(i);
  }
  return part;
}

std::optional<ReportFigure> gamma_curves(const std::vector<ReuseCurve>& curves) {
  LineChart saving{.x_label = "{/Symbol g}", .y_label = "prefix bytes not read"};
  LineChart error{.x_label = "{/Symbol g}", .y_label = "relative L2 error where reused"};
  ReportFigure part;
  part.numbers.header = {"\u03c4",
                         "\u03b3",
                         "heads",
                         "bytes saved",
                         "FLOPs saved",
                         "error where reused",
                         "error over all heads",
                         "terms where reused"};
  std::int64_t terms = 0;
  for (const ReuseCurve& curve : curves) {
    const std::string title = fmt::format("\u03c4 = {}", curve.tau);
    Curve bytes{title, {}, {}, ""};
    Curve l2 = bytes;
    for (const ReusePoint& point : curve.points) {
      bytes.x.push_back(point.gamma);
      bytes.y.push_back(point.byte_saving);
      l2.x.push_back(point.gamma);
      l2.y.push_back(point.relative_l2_reused);
      terms = std::max(terms, point.terms_reused);
      part.numbers.rows.push_back(
          {std::to_string(curve.tau), fmt::format("{:g}", point.gamma), count_text(point.heads),
           report_number(point.byte_saving), report_number(point.flop_saving),
           report_number(point.relative_l2_reused), report_number(point.relative_l2_all_steps),
           count_text(point.terms_reused)});
    }
    saving.curves.push_back(std::move(bytes));
    error.curves.push_back(std::move(l2));
  }
  if (saving.curves.empty() || part.numbers.rows.empty()) return std::nullopt;
  error.y_upper = round_up_to(largest_of(error.curves));
  saving.x_from = error.x_from = where_heads_differ(curves);
  saving.curves = merge_equal(saving.curves, "\u03c4 = ");
  error.curves = merge_equal(error.curves, "\u03c4 = ");
  saving.x_label = error.x_label = "\u03b3: heads with a higher similarity reuse";
  part.figure = gamma_figure(saving, error, terms);
  return part;
}

}  // namespace blockscope
