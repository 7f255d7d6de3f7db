#include "analysis/figures/bar_chart.h"

#include <fmt/format.h>

#include "analysis/figures/palette.h"
#include "analysis/figures/panels.h"

namespace blockscope {

void draw_bars(const BarChart& chart, Figure& figure) {
  const double width = 0.8 / static_cast<double>(chart.series.size());
  std::string script = fmt::format(
                           "set xrange [-0.6:{:.1f}]\nset yrange [0:{:.9g}]\nset xlabel '{}'\n"
                           "set ylabel '{}'\nset boxwidth {:.6f} absolute\nset grid noxtics\n",
                           static_cast<double>(chart.groups.size()) - 0.4, chart.y_upper,
                           chart.x_label, chart.y_label, width * 0.94) +
                       slot_tics("x", chart.groups, 24) + "plot ";
  for (std::size_t s = 0; s < chart.series.size(); ++s) {
    const double offset = (static_cast<double>(s) + 0.5) * width - 0.4;
    script += fmt::format(
        "{}'bars.tsv' using ($1+{:.6f}):{} with boxes linecolor rgb '{}' "
        "title '{}'",
        s == 0 ? "" : ", \\\n  ", offset, s + 2, kLineColors[s % kLineColors.size()],
        chart.series[s].title);
  }
  std::string data;
  for (std::size_t g = 0; g < chart.groups.size(); ++g) {
    std::vector<double> row{static_cast<double>(g)};
    for (const BarSeries& series : chart.series) row.push_back(series.values.at(g));
    data += data_row(row);
  }
  figure.width = 720;
  figure.height = 320;
  figure.script = script + "\n";
  figure.data = {{"bars.tsv", data}};
}

}  // namespace blockscope
