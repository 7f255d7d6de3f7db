#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "analysis/figures/figures.h"
#include "analysis/figures/palette.h"
#include "analysis/figures/panels.h"
#include "analysis/figures/terms.h"

namespace blockscope {
namespace {

constexpr std::size_t kLayersPerFigure = 12;
constexpr std::size_t kFewHeads = 16;  ///< up to this, three plots a row; above, two

struct Means {
  ResultArray external, internal;  ///< [layer, head]
  double lower = 0.0;              ///< end of the y axis
};

/// One block of lines per layer, two empty lines between: slot, A_in, A_out.
std::string data_text(const Means& means, std::size_t first, std::size_t last) {
  std::string text;
  const std::size_t heads = means.external.axes[1].size();
  for (std::size_t layer = first; layer < last; ++layer) {
    for (std::size_t head = 0; head < heads; ++head) {
      text += data_row({static_cast<double>(head), means.internal.at({layer, head}),
                        means.external.at({layer, head})});
    }
    text += "\n\n";
  }
  return text;
}

std::string plot_command(std::size_t index) {
  const std::string data = fmt::format("'similarity.tsv' index {}", index);
  return fmt::format(
      "plot {0} using ($1-0.14):2:(0.28):($3-$2) with vectors nohead linewidth 1 "
      "linecolor rgb '#909090', \\\n"
      "  {0} using ($1-0.14):2 with points pointtype 5 pointsize 0.7 linecolor rgb '{1}' "
      "title 'A_{{in}}', \\\n"
      "  {0} using ($1+0.14):3 with points pointtype 7 pointsize 0.8 linecolor rgb '{2}' "
      "title 'A_{{out}}'\n",
      data, kInternalColor, kExternalColor);
}

std::string script_text(const Means& means, std::size_t first, std::size_t last,
                        const Panels& panels) {
  const ResultAxis& layers = means.external.axes[0];
  const ResultAxis& heads = means.external.axes[1];
  std::string script = "set multiplot\n";
  script += fmt::format("set xrange [-0.6:{:.1f}]\n", static_cast<double>(heads.size()) - 0.4);
  script +=
      fmt::format("set yrange [{:.9g}:{:.9g}]\n", means.lower, 1.0 + 0.04 * (1.0 - means.lower));
  script += slot_tics("x", labels_of(heads), 16);
  for (std::size_t layer = first; layer < last; ++layer) {
    const std::size_t i = layer - first;
    script += panels.place(i);
    script +=
        fmt::format("set title {} offset 0,-0.6\n", gnuplot_text("layer " + layers.label(layer)));
    script += panels.is_lowest(i) ? "set xlabel 'query head' offset 0,0.4\n" : "unset xlabel\n";
    script += panels.column(i) == 0 ? "set ylabel 'mean cosine'\nset format y '%g'\n"
                                    : "unset ylabel\nset format y ''\n";
    script += i == 0 ? fmt::format("set key horizontal right top at {}\n",
                                   panels.at(panels.width() - panels.right, 4))
                     : "unset key\n";
    script += plot_command(i);
  }
  return script + "unset multiplot\n";
}

NumberTable numbers_of(const Means& means, std::size_t first, std::size_t last) {
  NumberTable table{{"layer", "head", "A_in", "A_out", "terms"}, {}};
  for (std::size_t layer = first; layer < last; ++layer) {
    for (std::size_t head = 0; head < means.external.axes[1].size(); ++head) {
      table.rows.push_back({means.external.axes[0].label(layer), means.external.axes[1].label(head),
                            report_number(means.internal.at({layer, head})),
                            report_number(means.external.at({layer, head})),
                            terms_text(means.external, {layer, head})});
    }
  }
  return table;
}

}  // namespace

std::vector<ReportFigure> head_similarity(const MetricResult& result) {
  Means means{mean_over_others(result.array("similarity_external"), {"layer", "head"}),
              mean_over_others(result.array("similarity_internal"), {"layer", "head"}), 0.0};
  const double least = std::fmin(range_of(means.external).least, range_of(means.internal).least);
  std::vector<ReportFigure> figures;
  if (!std::isfinite(least)) return figures;
  means.lower = round_down_to(least, 1.0);
  const std::size_t layers = means.external.axes[0].size();
  const std::size_t heads = means.external.axes[1].size();
  const std::size_t parts = (layers + kLayersPerFigure - 1) / kLayersPerFigure;
  for (std::size_t part = 0; part < parts; ++part) {
    const std::size_t first = part * kLayersPerFigure;
    const std::size_t last = std::min(layers, first + kLayersPerFigure);
    Panels panels{.count = last - first, .columns = heads <= kFewHeads ? 3U : 2U};
    panels.columns = std::min(panels.columns, panels.count);
    panels.top = 58;  // room for the key above the last column's title
    panels.plot_width = panels.columns == 3 ? 270 : panels.columns == 2 ? 420 : 640;
    ReportFigure part_of;
    part_of.figure.name =
        parts == 1 ? "head-similarity" : fmt::format("head-similarity-{}", part + 1);
    part_of.figure.title = "Cross-step similarity per layer and head";
    part_of.figure.caption = fmt::format(
        "Mean cosine between adjacent denoising steps, per query head. Blue circles: A_out, "
        "attention to the prefix. Orange squares: A_in, attention inside the block. A grey line "
        "joins the two of a head. {}Layers {}\u2013{} of {}. n = {} step-to-step comparisons of a "
        "position for A_out, {} for A_in, over all layers and heads. As FlashBlock (arXiv "
        "2602.05305), Fig. 5.",
        axis_start_text(means.lower), means.external.axes[0].label(first),
        means.external.axes[0].label(last - 1), layers, count_text(total_terms(means.external)),
        count_text(total_terms(means.internal)));
    part_of.figure.width = panels.width();
    part_of.figure.height = panels.height();
    part_of.figure.script = script_text(means, first, last, panels);
    part_of.figure.data = {{"similarity.tsv", data_text(means, first, last)}};
    part_of.numbers = numbers_of(means, first, last);
    figures.push_back(std::move(part_of));
  }
  return figures;
}

}  // namespace blockscope
