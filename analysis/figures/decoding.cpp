#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "analysis/figures/figures.h"
#include "analysis/figures/heatmap.h"
#include "analysis/figures/line_chart.h"
#include "analysis/figures/panels.h"
#include "analysis/figures/terms.h"

namespace blockscope {

std::optional<ReportTable> decoding_means(const MetricResult& result) {
  const ResultArray& means = result.array("means");
  const ResultArray& below = result.array("share_below_tau");
  ReportTable part;
  part.name = "decoding-means";
  part.title = "Decoding in numbers";
  part.caption =
      "M: number of block positions whose input token differs from the previous step's. Heads can "
      "reuse at steps with M < \u03c4, except at a block's first step.";
  part.table.header = {"quantity", "mean", "n"};
  for (std::size_t i = 0; i < means.axes[0].size(); ++i) {
    if (!std::isfinite(means.values[i])) continue;
    part.table.rows.push_back(
        {means.axes[0].label(i), report_number(means.values[i]), terms_text(means, {i})});
  }
  for (std::size_t i = 0; i < below.axes[0].size(); ++i) {
    if (!std::isfinite(below.values[i])) continue;
    part.table.rows.push_back({fmt::format("share of steps with M < {}", below.axes[0].label(i)),
                               report_number(below.values[i]), terms_text(below, {i})});
  }
  if (part.table.empty()) return std::nullopt;
  return part;
}

std::optional<ReportFigure> decoding_over_steps(const MetricResult& result) {
  const ResultArray& tokens = result.array("tokens_by_step");
  const ResultArray& confidence = result.array("confidence_by_step");
  if (range_of(tokens).empty()) return std::nullopt;
  LineChart left{.x_label = "denoising step", .y_label = "tokens decided"};
  left.curves = curves_of(tokens, "step", "", "");
  left.y_upper = round_up_to(range_of(tokens).greatest);
  LineChart right{.x_label = "denoising step", .y_label = "confidence at transfer"};
  right.curves = curves_of(confidence, "step", "", "");
  Panels panels{.count = 2, .columns = 2, .plot_width = 350, .plot_height = 200};
  panels.gap_x = 84;
  panels.top = 16;
  ReportFigure part;
  part.figure = {
      .name = "decoding-steps",
      .title = "Tokens and confidence over the steps of a block",
      .caption = fmt::format("Left: tokens decided at a step, mean over blocks (n = {}). "
                             "Right: confidence of the decided tokens (n = {}).",
                             counted(total_terms(tokens), "step", "steps"),
                             counted(total_terms(confidence), "token", "tokens")),
      .width = panels.width(),
      .height = panels.height(),
      .script = "set multiplot\nunset key\n" + panels.place(0) +
                chart_commands(left, "tokens.tsv") + panels.place(1) +
                chart_commands(right, "confidence.tsv") + "unset multiplot\n",
      .data = {{"tokens.tsv", chart_data(left)}, {"confidence.tsv", chart_data(right)}}};
  left.curves[0].title = "tokens";
  right.curves[0].title = "confidence";
  part.numbers = curve_numbers("step", {left.curves[0], right.curves[0]});
  return part;
}

std::optional<ReportTable> decoding_edits(const MetricResult& result) {
  const ResultArray* edits = result.find("edits_by_step");
  if (edits == nullptr) return std::nullopt;
  const ResultArray& masks = result.array("masks_by_step");
  const ResultArray& tokens = result.array("tokens_by_step");
  ReportTable part;
  part.name = "decoding-edits";
  part.title = "Edits over the steps of a block";
  part.caption =
      "Means over blocks. Edited: another token replaced one that was decided before. Masks that "
      "fill a block up at its end and positions that insertions push out of it are not counted.";
  part.table.header = {"step", "undecided before", "tokens decided"};
  for (std::size_t kind = 0; kind < edits->axes[0].size(); ++kind) {
    part.table.header.push_back(edits->axes[0].label(kind));
  }
  part.table.header.emplace_back("blocks");
  for (std::size_t step = 0; step < edits->axes[1].size(); ++step) {
    std::vector<std::string> row{edits->axes[1].label(step), report_number(masks.values[step], 2),
                                 report_number(tokens.values[step], 2)};
    for (std::size_t kind = 0; kind < edits->axes[0].size(); ++kind) {
      row.push_back(report_number(edits->at({kind, step}), 2));
    }
    row.push_back(terms_text(tokens, {step}));
    part.table.rows.push_back(std::move(row));
  }
  return part;
}

std::optional<ReportFigure> settled_map(const MetricResult& result) {
  const ResultArray& settled = result.array("settled");
  const ValueRange range = range_of(settled);
  if (range.empty() || range.greatest <= 0.0) return std::nullopt;
  const std::size_t steps = settled.axes[0].size();
  const std::size_t positions = settled.axes[1].size();
  Panels panels{.count = 1, .columns = 1};
  panels.plot_width = std::clamp(static_cast<int>(steps) * 22, 160, 560);
  panels.plot_height = std::clamp(static_cast<int>(positions) * 14, 120, 420);
  panels.top = 16;
  panels.right = 96;
  std::string cells;
  for (std::size_t s = 0; s < steps; ++s) {
    for (std::size_t p = 0; p < positions; ++p) {
      cells += cell_line(static_cast<double>(s) + 1.0, static_cast<double>(p), settled.at({s, p}));
    }
  }
  ReportFigure part;
  part.figure = {
      .name = "settled",
      .title = "When each position of a block was decided",
      .caption = fmt::format("Number of blocks in which the position got its final token at the "
                             "step. Decoding in reading order gives a diagonal. n = {} positions.",
                             count_text(std::llround([&] {
                               double sum = 0.0;
                               for (const double value : settled.values) sum += value;
                               return sum;
                             }()))),
      .width = panels.width(),
      .height = panels.height(),
      .script = cell_axes(steps, positions) +
                fmt::format("set xrange [0.5:{}.5]\nset xtics 1, {}\n", steps,
                            std::max<std::size_t>(1, steps / 8)) +
                color_bar(panels, 0.0, range.greatest, "blocks") + panels.place(0) +
                "set xlabel 'denoising step'\nset ylabel 'position in the block'\n"
                "plot " +
                cells_command("settled.tsv") + "\n",
      .data = {{"settled.tsv", cells}}};
  return part;
}

}  // namespace blockscope
