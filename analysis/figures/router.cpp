#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "analysis/figures/figures.h"
#include "analysis/figures/heatmap.h"
#include "analysis/figures/line_chart.h"
#include "analysis/figures/panels.h"
#include "analysis/figures/terms.h"

namespace blockscope {
namespace {

/// Indices of the layers that have experts.
std::vector<std::size_t> layers_with_terms(const ResultArray& entropy) {
  std::vector<std::size_t> layers;
  for (std::size_t layer = 0; layer < entropy.axes[0].size(); ++layer) {
    if (entropy.terms[layer] > 0) layers.push_back(layer);
  }
  return layers;
}

}  // namespace

std::optional<ReportFigure> router_usage_map(const MetricResult& result) {
  const ResultArray& usage = result.array("usage");
  const ResultArray& entropy = result.array("entropy");
  const std::vector<std::size_t> layers = layers_with_terms(entropy);
  if (layers.empty()) return std::nullopt;
  const std::size_t experts = usage.axes[1].size();
  Panels panels{.count = 1, .columns = 1};
  panels.plot_width = std::clamp(static_cast<int>(experts) * 12, 200, 760);
  panels.plot_height = std::clamp(static_cast<int>(layers.size()) * 20, 60, 640);
  panels.top = 16;
  panels.right = 96;
  std::string cells;
  std::vector<std::string> names;
  double most = 0.0;
  for (std::size_t row = 0; row < layers.size(); ++row) {
    names.push_back(usage.axes[0].label(layers[row]));
    for (std::size_t expert = 0; expert < experts; ++expert) {
      const double share = usage.at({layers[row], expert});
      most = std::max(most, share);
      cells += cell_line(static_cast<double>(expert), static_cast<double>(row), share);
    }
  }
  std::string script = cell_axes(experts, layers.size());
  script += slot_tics("x", labels_of(usage.axes[1]), 24) + slot_tics("y", names, 32);
  script += color_bar(panels, 0.0, round_up_to(most), "share of rows") + panels.place(0);
  script += "set xlabel 'expert'\nset ylabel 'layer'\nplot " + cells_command("usage.tsv") + "\n";
  ReportFigure part;
  part.figure = {.name = "router-usage",
                 .title = "Which experts are used",
                 .caption = fmt::format(
                     "Share of a layer's rows (positions of denoising steps) that chose each "
                     "expert. Layers without experts are left out. n = {} choices.",
                     count_text(total_terms(usage))),
                 .width = panels.width(),
                 .height = panels.height(),
                 .script = std::move(script),
                 .data = {{"usage.tsv", std::move(cells)}}};
  return part;
}

std::optional<ReportTable> router_by_layer(const MetricResult& result) {
  const ResultArray& usage = result.array("usage");
  const ResultArray& entropy = result.array("entropy");
  const ResultArray agreement = mean_over_others(result.array("agreement"), {"layer"});
  ReportTable part;
  part.name = "router-layers";
  part.title = "How evenly and how steadily experts are used";
  part.caption = fmt::format(
      "Entropy of the usage in nats (ln {} = {} if all experts are used equally). Most used: share "
      "of rows of the most used expert. Never used: number of experts that no row chose. "
      "Agreement: share of a position's experts that it also chose at the previous step.",
      usage.axes[1].size(), report_number(std::log(static_cast<double>(usage.axes[1].size()))));
  part.table.header = {"layer", "entropy", "most used", "never used", "agreement", "rows"};
  for (const std::size_t layer : layers_with_terms(entropy)) {
    double most = 0.0;
    std::int64_t never = 0;
    for (std::size_t expert = 0; expert < usage.axes[1].size(); ++expert) {
      const double share = usage.at({layer, expert});
      most = std::max(most, share);
      never += share == 0.0 ? 1 : 0;
    }
    part.table.rows.push_back({entropy.axes[0].label(layer), report_number(entropy.at({layer})),
                               report_number(most), count_text(never),
                               report_number(agreement.at({layer})),
                               count_text(entropy.terms[layer])});
  }
  if (part.table.rows.empty()) return std::nullopt;
  return part;
}

std::optional<ReportFigure> router_agreement(const MetricResult& result) {
  const ResultArray mean = mean_over_others(result.array("agreement"), {"step"});
  if (range_of(mean).empty()) return std::nullopt;
  LineChart chart{.x_label = "denoising step t", .y_label = "experts chosen again"};
  chart.curves = curves_of(mean, "step", "", "");
  chart.curves.front().title = "all layers";
  ReportFigure part;
  part.figure.name = "router-agreement";
  part.figure.title = "How many experts are chosen again at the next step";
  part.figure.caption = fmt::format(
      "|C(t) \u2229 C(t-1)| / k: share of a position's k experts that it also chose at the "
      "previous step. Mean over layers, positions and blocks. n = {} pairs.",
      count_text(total_terms(mean)));
  draw_chart(chart, part.figure);
  part.numbers = curve_numbers("step", chart.curves);
  return part;
}

}  // namespace blockscope
