// Figures of metrics that the package does not know: those of Python (docs/python.md, "Your own
// metric").
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "analysis/figures/figures.h"
#include "analysis/figures/head_map.h"
#include "analysis/figures/line_chart.h"
#include "analysis/figures/terms.h"

namespace blockscope {
namespace {

std::string words_of(std::string name) {
  std::ranges::replace(name, '_', ' ');
  return name;
}

std::string figure_name(const MetricResult& result, const ResultArray& array, const char* what) {
  std::string name =
      array.name == result.metric ? result.metric : fmt::format("{}-{}", result.metric, array.name);
  std::ranges::replace(name, '_', '-');
  return fmt::format("{}-{}", name, what);
}

std::string caption_of(const MetricResult& result, const ResultArray& array) {
  return fmt::format("{}. {}.", array.description, result.formula);
}

std::optional<ReportFigure> map_of(const MetricResult& result, const ResultArray& array) {
  if (!array.has_axis("layer")) return std::nullopt;
  for (const char* const columns : {"head", "kv_head"}) {
    if (!array.has_axis(columns)) continue;
    const ResultArray means = mean_over_others(array, {"layer", columns});
    double largest = 0.0;
    for (const double value : means.values) {
      if (value < 0.0) return std::nullopt;  // the map's colours begin at 0
      if (std::isfinite(value)) largest = std::max(largest, value);
    }
    const bool kv = std::string(columns) == "kv_head";
    return head_map(array,
                    {.name = figure_name(result, array, "heads"),
                     .title = fmt::format("{} by layer and head", result.title),
                     .caption = "{}",
                     .value = words_of(array.name),
                     .upper = largest > 0.0 ? round_up_to(largest) : 1.0,
                     .columns = columns,
                     .x_label = kv ? "KV head" : "query head"},
                    caption_of(result, array));
  }
  return std::nullopt;
}

std::optional<ReportFigure> curve_of(const MetricResult& result, const ResultArray& array) {
  if (!array.has_axis("step")) return std::nullopt;
  const ResultArray means = mean_over_others(array, {"step"});
  LineChart chart{.x_label = "denoising step", .y_label = words_of(array.name)};
  chart.curves = {{words_of(array.name), means.axes[0].index, means.values}};
  if (!has_values(chart.curves.front())) return std::nullopt;
  double least = 0.0;
  for (const double value : means.values) {
    if (std::isfinite(value)) least = std::min(least, value);
  }
  const double largest = largest_of(chart.curves);
  chart.y_lower = least < 0.0 ? -round_up_to(-least) : 0.0;
  chart.y_upper = largest > 0.0 ? round_up_to(largest) : 1.0;
  ReportFigure part;
  part.figure.name = figure_name(result, array, "steps");
  part.figure.title = fmt::format("{} over the steps", result.title);
  part.figure.caption =
      fmt::format("{} n = {} terms.", caption_of(result, array), count_text(total_terms(means)));
  draw_chart(chart, part.figure);
  part.numbers = curve_numbers("step", chart.curves);
  return part;
}

}  // namespace

std::vector<ReportFigure> own_figures(const MetricResult& result) {
  std::vector<ReportFigure> figures;
  for (const ResultArray& array : result.arrays) {
    if (array.terms.empty() || array.values.empty()) continue;
    if (auto map = map_of(result, array)) figures.push_back(std::move(*map));
    if (auto curve = curve_of(result, array)) figures.push_back(std::move(*curve));
  }
  return figures;
}

}  // namespace blockscope
