#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "analysis/figures/figures.h"
#include "analysis/figures/heatmap.h"
#include "analysis/figures/panels.h"
#include "analysis/figures/terms.h"

namespace blockscope {
namespace {

constexpr std::size_t kMaxWrittenColumns = 16;  ///< with more heads, only colours

std::string cells_text(const ResultArray& mass) {
  std::string text;
  for (std::size_t layer = 0; layer < mass.axes[0].size(); ++layer) {
    for (std::size_t head = 0; head < mass.axes[1].size(); ++head) {
      const double value = mass.at({layer, head});
      text += cell_line(static_cast<double>(head), static_cast<double>(layer), value);
    }
  }
  return text;
}

}  // namespace

std::optional<ReportFigure> external_mass_map(const MetricResult& result) {
  const ResultArray mass = mean_over_others(result.array("external_mass"), {"layer", "head"});
  if (range_of(mass).empty()) return std::nullopt;
  const std::size_t layers = mass.axes[0].size();
  const std::size_t heads = mass.axes[1].size();
  Panels panels{.count = 1, .columns = 1};
  panels.plot_width = std::clamp(static_cast<int>(heads) * 56, 120, 760);
  panels.plot_height = std::clamp(static_cast<int>(layers) * 30, 60, 640);
  panels.top = 16;
  panels.right = 96;
  std::string script = cell_axes(heads, layers);
  script +=
      slot_tics("x", labels_of(mass.axes[1]), 32) + slot_tics("y", labels_of(mass.axes[0]), 36);
  script += color_bar(panels, 0.0, 1.0, "external mass") + panels.place(0);
  script += "set xlabel 'query head'\nset ylabel 'layer'\n";
  script += "plot " + cells_command("mass.tsv");
  if (heads <= kMaxWrittenColumns) {
    // Dark text on the bright half of viridis.
    script +=
        ", \\\n  'mass.tsv' using 1:2:(sprintf('%.2f', $3)):($3 > 0.55 ? 0x000001 : 0xffffff) "
        "with labels textcolor rgb variable font ',10'";
  }
  ReportFigure part;
  part.figure = {.name = "external-mass",
                 .title = "External mass per head",
                 .caption = fmt::format(
                     "Share of the softmax weight on the prefix (keys outside the block): "
                     "exp(L_out) / (exp(L_in) + exp(L_out)), mean over positions and denoising "
                     "steps. At 0, the head attends only inside the block; at 1, only to the "
                     "prefix. n = {} terms over all layers and heads.",
                     count_text(total_terms(mass))),
                 .width = panels.width(),
                 .height = panels.height(),
                 .script = script + "\n",
                 .data = {{"mass.tsv", cells_text(mass)}}};
  part.numbers = {{"layer", "head", "external mass", "terms"}, {}};
  for (std::size_t layer = 0; layer < layers; ++layer) {
    for (std::size_t head = 0; head < heads; ++head) {
      part.numbers.rows.push_back({mass.axes[0].label(layer), mass.axes[1].label(head),
                                   report_number(mass.at({layer, head})),
                                   terms_text(mass, {layer, head})});
    }
  }
  return part;
}

}  // namespace blockscope
