#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "analysis/figures/figures.h"
#include "analysis/figures/line_chart.h"
#include "analysis/figures/terms.h"

namespace blockscope {
namespace {

struct Shown {
  const char* array;
  const char* title;
};
constexpr std::array kShown{Shown{"block_accuracy", "of the block\u2019s top-k set"},
                            Shown{"token_accuracy", "of each token\u2019s top-k set"},
                            Shown{"covered", "of the prefix\u2019s probability"},
                            Shown{"output_error", "error of the output"}};

}  // namespace

std::optional<ReportFigure> selection_over_steps(const MetricResult& result) {
  LineChart chart{.x_label = "denoising step t", .y_label = "share read; relative L2 error"};
  std::int64_t rows = 0;
  for (const Shown& shown : kShown) {
    const ResultArray* array = result.find(shown.array);
    if (array == nullptr) continue;
    const ResultArray mean = mean_over_others(*array, {"step"});
    if (range_of(mean).empty()) continue;
    if (shown.array == std::string("output_error")) rows = total_terms(mean);
    Curve curve = curves_of(mean, "step", "", "").front();
    curve.title = shown.title;
    const double greatest = *std::ranges::max_element(
        curve.y, [](double a, double b) { return std::isnan(a) || (!std::isnan(b) && a < b); });
    chart.y_upper = std::max(chart.y_upper, round_up_to(greatest));
    chart.curves.push_back(std::move(curve));
  }
  if (chart.curves.empty()) return std::nullopt;
  ReportFigure part;
  part.figure.name = "selection";
  part.figure.title = "How many of the important keys the sparse policy read";
  part.figure.caption = fmt::format(
      "Share of each step's exact top-k sets that the policy read (MAGE, eq. 1, for the block's "
      "set and for each token's). Share of the prefix's probability on the keys it read. Error of "
      "the attention output against exact attention of the same queries. Steps that read the whole "
      "prefix are left out. Means over layers, heads and blocks. n = {} errors.",
      count_text(rows));
  draw_chart(chart, part.figure);
  part.numbers = curve_numbers("step", chart.curves);
  return part;
}

std::optional<ReportTable> selection_by_layer(const MetricResult& result) {
  ReportTable part;
  part.name = "selection-layers";
  part.title = "The same values, layer by layer";
  part.caption = "Means over heads, steps and blocks.";
  part.table.header = {"layer"};
  std::vector<ResultArray> means;
  for (const Shown& shown : kShown) {
    const ResultArray* array = result.find(shown.array);
    if (array == nullptr) continue;
    means.push_back(mean_over_others(*array, {"layer"}));
    part.table.header.emplace_back(shown.title);
  }
  if (means.empty() || range_of(means.back()).empty()) return std::nullopt;
  const ResultAxis& layers = means.front().axes.front();
  for (std::size_t layer = 0; layer < layers.size(); ++layer) {
    std::vector<std::string> row{layers.label(layer)};
    for (const ResultArray& mean : means) row.push_back(report_number(mean.at({layer})));
    part.table.rows.push_back(std::move(row));
  }
  return part;
}

}  // namespace blockscope
