#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "analysis/figures/figures.h"
#include "analysis/figures/head_map.h"
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

std::optional<ReportFigure> head_map(const ResultArray& array, const HeadMap& map,
                                     const std::string& formula) {
  const ResultArray means = mean_over_others(array, {"layer", map.columns});
  if (range_of(means).empty()) return std::nullopt;
  const std::size_t layers = means.axes[0].size();
  const std::size_t heads = means.axes[1].size();
  Panels panels{.count = 1, .columns = 1};
  panels.plot_width = std::clamp(static_cast<int>(heads) * 56, 120, 760);
  panels.plot_height = std::clamp(static_cast<int>(layers) * 30, 60, 640);
  panels.top = 16;
  panels.right = 96;
  std::string script = cell_axes(heads, layers);
  script +=
      slot_tics("x", labels_of(means.axes[1]), 32) + slot_tics("y", labels_of(means.axes[0]), 36);
  script += color_bar(panels, 0.0, map.upper, map.value) + panels.place(0);
  script += fmt::format("set xlabel '{}'\nset ylabel 'layer'\n", map.x_label);
  script += "plot " + cells_command("heads.tsv");
  if (heads <= kMaxWrittenColumns) {
    // Dark text on the bright half of viridis.
    script += fmt::format(
        ", \\\n  'heads.tsv' using 1:2:(sprintf('%.2f', $3)):($3 > {} ? 0x000001 : 0xffffff) "
        "with labels textcolor rgb variable font ',10'",
        0.55 * map.upper);
  }
  ReportFigure part;
  part.figure = {.name = map.name,
                 .title = map.title,
                 .caption = fmt::format(fmt::runtime(map.caption), formula) +
                            fmt::format(" n = {} terms over all layers and {}s.",
                                        count_text(total_terms(means)), map.columns),
                 .width = panels.width(),
                 .height = panels.height(),
                 .script = script + "\n",
                 .data = {{"heads.tsv", cells_text(means)}}};
  part.numbers = {{"layer", map.columns, map.value, "terms"}, {}};
  for (std::size_t layer = 0; layer < layers; ++layer) {
    for (std::size_t head = 0; head < heads; ++head) {
      part.numbers.rows.push_back({means.axes[0].label(layer), means.axes[1].label(head),
                                   report_number(means.at({layer, head})),
                                   terms_text(means, {layer, head})});
    }
  }
  return part;
}

std::optional<ReportFigure> external_mass_map(const MetricResult& result) {
  return head_map(
      result.array("external_mass"),
      {.name = "external-mass",
       .title = "External mass per head",
       .caption = "Share of the softmax weight on the prefix (keys outside the block): {}. At 0, "
                  "the head attends only inside the block; at 1, only to the prefix.",
       .value = "external mass"},
      result.formula);
}

}  // namespace blockscope
