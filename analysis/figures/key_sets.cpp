// Top-k sets (MAGE): the union of the tokens' sets, and how much of them a block's set contains.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "analysis/figures/bar_chart.h"
#include "analysis/figures/figures.h"
#include "analysis/figures/line_chart.h"
#include "analysis/figures/terms.h"

namespace blockscope {
namespace {

/// Rows x KV heads by bin, all layers together: [steps][bin].
std::vector<std::vector<double>> counts_by_bin(const ResultArray& histogram) {
  const std::size_t layers = histogram.axes[0].size();
  const std::size_t steps = histogram.axes[1].size();
  const std::size_t bins = histogram.axes[2].size();
  std::vector<std::vector<double>> counts(steps, std::vector<double>(bins, 0.0));
  for (std::size_t layer = 0; layer < layers; ++layer) {
    for (std::size_t step = 0; step < steps; ++step) {
      for (std::size_t bin = 0; bin < bins; ++bin) {
        counts[step][bin] += histogram.at({layer, step, bin});
      }
    }
  }
  return counts;
}

double sum_of(const std::vector<double>& values) {
  double sum = 0.0;
  for (const double value : values) sum += value;
  return sum;
}

/// "p5 1.02, p50 2.31, p95 4.50, max 6.20".
std::string quantile_text(const ResultArray& quantiles, std::size_t steps) {
  std::string text;
  for (std::size_t i = 0; i < quantiles.axes[1].size(); ++i) {
    text += fmt::format("{}{} {:.2f}", i == 0 ? "" : ", ", quantiles.axes[1].label(i),
                        quantiles.at({steps, i}));
  }
  return text;
}

}  // namespace

std::optional<ReportFigure> union_sizes(const MetricResult& result) {
  const ResultArray& histogram = result.array("union_histogram");
  const ResultArray& quantiles = result.array("union_quantiles_all");
  const std::vector<std::vector<double>> counts = counts_by_bin(histogram);
  const auto total = std::ranges::max(counts, {}, sum_of);
  if (sum_of(total) <= 0.0) return std::nullopt;
  BarChart chart{.x_label = "|\u222A_i Top-k(i)| / k, from this value to the next",
                 .y_label = "share of blocks \u00d7 KV heads"};
  ReportFigure part;
  part.numbers.header = {"|U| / k"};
  double tallest = 0.0;
  std::string spread;
  const std::size_t bins = histogram.axes[2].size();
  std::size_t used = 1;  // number of bins up to the last non-empty one
  for (std::size_t step = 0; step < counts.size(); ++step) {
    const double terms = sum_of(counts[step]);
    if (terms <= 0.0) continue;
    const std::string name =
        histogram.axes[1].label(step) == "all" ? "all steps" : histogram.axes[1].label(step);
    BarSeries series{name, {}};
    for (std::size_t bin = 0; bin < bins; ++bin) {
      series.values.push_back(counts[step][bin] / terms);
      tallest = std::max(tallest, series.values.back());
      if (counts[step][bin] > 0.0) used = std::max(used, bin + 1);
    }
    chart.series.push_back(std::move(series));
    part.numbers.header.push_back("count, " + name);
    spread +=
        fmt::format(" {}: {} (n = {}).", name == "all steps" ? "All steps" : "Step 1",
                    quantile_text(quantiles, step), count_text(static_cast<std::int64_t>(terms)));
  }
  for (std::size_t bin = 0; bin < used; ++bin) {
    chart.groups.push_back(fmt::format("{:g}", histogram.axes[2].index.at(bin)));
    std::vector<std::string> row{histogram.axes[2].label(bin)};
    for (const std::vector<double>& of_step : counts) {
      if (sum_of(of_step) > 0.0) row.push_back(count_text(std::llround(of_step[bin])));
    }
    part.numbers.rows.push_back(std::move(row));
  }
  chart.y_upper = round_up_to(tallest);
  part.figure.name = "union-size";
  part.figure.title = "How many keys the tokens of a block want together, in units of k";
  part.figure.caption = fmt::format(
      "Distribution of the size of the union of the tokens' top-k sets, divided by k. At 1, all "
      "tokens of the block want the same keys.{} As MAGE, Fig. 1a.",
      spread);
  draw_bars(chart, part.figure);
  return part;
}

std::optional<ReportFigure> estimation_accuracy(const MetricResult& result) {
  const ResultArray& later = result.array("est_acc_later");
  const ResultArray all = mean_over_others(later, {"estimator"});
  if (range_of(all).empty()) return std::nullopt;
  const ResultAxis& layers = later.axes[1];
  BarChart chart{.x_label = "layer", .y_label = "EstAcc"};
  for (std::size_t i = 0; i < layers.size(); ++i) chart.groups.push_back(layers.label(i));
  chart.groups.emplace_back("all");
  ReportFigure part;
  part.numbers.header = {"layer"};
  std::string means;
  for (std::size_t e = 0; e < all.axes[0].size(); ++e) {
    BarSeries series{all.axes[0].label(e), {}};
    for (std::size_t i = 0; i < layers.size(); ++i) series.values.push_back(later.at({e, i}));
    series.values.push_back(all.values[e]);
    part.numbers.header.push_back(series.title);
    means += fmt::format(" {}: {} (n = {}).", series.title, report_number(all.values[e]),
                         terms_text(all, {e}));
    chart.series.push_back(std::move(series));
  }
  for (std::size_t g = 0; g < chart.groups.size(); ++g) {
    std::vector<std::string> row{chart.groups[g]};
    for (const BarSeries& series : chart.series) row.push_back(report_number(series.values[g]));
    part.numbers.rows.push_back(std::move(row));
  }
  part.figure.name = "estimation-accuracy";
  part.figure.title = "How much of each token's set a shared set of the block contains";
  part.figure.caption = fmt::format(
      "EstAcc: share of a token's own top-k keys that the block's set contains, at steps after the "
      "first. Block oracle: the set of the same step, the best shared set. First-step oracle: "
      "step 1's set, which MAGE uses.{} As MAGE, eq. 1 and Fig. 3.",
      means);
  draw_bars(chart, part.figure);
  return part;
}

}  // namespace blockscope
