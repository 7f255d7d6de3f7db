#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "analysis/figures/figures.h"
#include "analysis/figures/heatmap.h"
#include "analysis/figures/line_chart.h"
#include "analysis/figures/panels.h"
#include "analysis/figures/terms.h"

namespace blockscope {

std::optional<ReportTable> cache_means(const MetricResult& result) {
  const ResultArray& means = result.array("means");
  ReportTable part;
  part.name = "cache-means";
  part.title = "What a pass computed";
  part.caption =
      "Means over layers and denoising passes. Saved: share of the canvas whose queries, attention "
      "and FFN were not computed. Cosines compare kept entries and computed attention outputs "
      "with those of a pass over the whole canvas, with the same input and no cache.";
  part.table.header = {"", "mean", "n"};
  for (std::size_t i = 0; i < means.values.size(); ++i) {
    part.table.rows.push_back(
        {means.axes[0].label(i), report_number(means.values[i]), count_text(means.terms[i])});
  }
  return part;
}

std::optional<ReportFigure> cache_rows_map(const MetricResult& result) {
  const ResultArray& rows = result.array("rows");
  const ValueRange range = range_of(rows);
  if (range.empty()) return std::nullopt;
  const std::size_t layers = rows.axes[0].size();
  const std::size_t steps = rows.axes[1].size();
  Panels panels{.count = 1, .columns = 1};
  panels.plot_width = std::clamp(static_cast<int>(steps) * 20, 200, 760);
  panels.plot_height = std::clamp(static_cast<int>(layers) * 20, 80, 640);
  panels.top = 16;
  panels.right = 96;
  std::string cells;
  for (std::size_t layer = 0; layer < layers; ++layer) {
    for (std::size_t step = 0; step < steps; ++step) {
      cells +=
          cell_line(static_cast<double>(step), static_cast<double>(layer), rows.at({layer, step}));
    }
  }
  std::string script = cell_axes(steps, layers);
  script +=
      slot_tics("x", labels_of(rows.axes[1]), 24) + slot_tics("y", labels_of(rows.axes[0]), 32);
  script += color_bar(panels, 0.0, round_up_to(range.greatest), "positions") + panels.place(0);
  script +=
      "set xlabel 'denoising step t'\nset ylabel 'layer'\nplot " + cells_command("rows.tsv") + "\n";
  ReportFigure part;
  part.figure = {.name = "cache-rows",
                 .title = "Positions computed, layer by layer",
                 .caption = fmt::format(
                     "Number of positions whose query, attention and FFN a pass computed, per "
                     "layer and step of a block. Mean over the blocks. n = {} passes.",
                     count_text(total_terms(rows) / static_cast<std::int64_t>(layers))),
                 .width = panels.width(),
                 .height = panels.height(),
                 .script = std::move(script),
                 .data = {{"rows.tsv", std::move(cells)}}};
  return part;
}

std::optional<ReportFigure> cache_rows_over_steps(const MetricResult& result) {
  constexpr std::array<std::pair<const char*, const char*>, 3> kShown{
      {{"rows", "rows computed"}, {"keys", "keys written"}, {"values", "values written"}}};
  LineChart chart{.x_label = "denoising step t", .y_label = "positions"};
  double greatest = 0.0;
  std::vector<Curve> curves;
  for (const auto& [name, title] : kShown) {
    const ResultArray mean = mean_over_others(result.array(name), {"step"});
    if (range_of(mean).empty()) return std::nullopt;
    greatest = std::max(greatest, range_of(mean).greatest);
    curves.push_back(curves_of(mean, "step", "", "").front());
    curves.back().title = title;
  }
  chart.y_upper = round_up_to(greatest);
  chart.curves = merge_equal(curves, "");
  ReportFigure part;
  part.figure.name = "cache-steps";
  part.figure.title = "Rows computed and entries written, step by step";
  part.figure.caption = fmt::format(
      "Number of positions of the canvas, mean over layers and blocks. n = {} passes times layers.",
      count_text(total_terms(result.array("rows"))));
  draw_chart(chart, part.figure);
  part.numbers = curve_numbers("step", chart.curves);
  return part;
}

std::optional<ReportFigure> cache_staleness(const MetricResult& result) {
  constexpr std::array<std::pair<const char*, const char*>, 3> kShown{
      {{"key_cosine", "keys kept"},
       {"value_cosine", "values kept"},
       {"attention_cosine", "attention output computed"}}};
  LineChart chart{.x_label = "denoising step t", .y_label = "cosine to a pass without cache"};
  double least = 1.0;
  std::int64_t terms = 0;
  for (const auto& [name, title] : kShown) {
    const ResultArray* array = result.find(name);
    if (array == nullptr) return std::nullopt;
    const ResultArray mean = mean_over_others(*array, {"step"});
    if (range_of(mean).empty()) continue;  // the cache kept nothing
    least = std::min(least, range_of(mean).least);
    terms += total_terms(mean);
    chart.curves.push_back(curves_of(mean, "step", "", "").front());
    chart.curves.back().title = title;
  }
  if (chart.curves.empty()) return std::nullopt;
  chart.y_lower = round_down_to(least, 1.0);
  ReportFigure part;
  part.figure.name = "cache-staleness";
  part.figure.title = "How stale the cache is";
  part.figure.caption = fmt::format(
      "Cosine to a pass over the whole canvas with the same input and no cache. It compares the "
      "entries that the pass did not write, and the attention outputs of the block's rows that it "
      "computed. Heads are concatenated. Means over positions, layers and blocks. n = {} means of "
      "cosines.",
      count_text(terms));
  draw_chart(chart, part.figure);
  part.numbers = curve_numbers("step", chart.curves);
  return part;
}

}  // namespace blockscope
