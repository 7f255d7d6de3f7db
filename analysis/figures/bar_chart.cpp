#include "analysis/figures/bar_chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "analysis/figures/palette.h"
#include "analysis/figures/panels.h"

namespace blockscope {

void look_like_methods(std::vector<BarSeries>& series, std::vector<std::string> names) {
  if (names.empty()) {
    for (const BarSeries& one : series) names.push_back(one.title);
  }
  const std::vector<LineLook> looks = method_looks(names);
  for (std::size_t i = 0; i < series.size(); ++i) {
    const auto before = std::span(looks).first(i);
    series[i].color = looks[i].color;
    series[i].density =
        std::ranges::find(before, looks[i].color, &LineLook::color) == before.end() ? 1.0 : 0.45;
  }
}

std::string bar_commands(const BarChart& chart, const std::string& file) {
  const double width = 0.8 / static_cast<double>(chart.series.size());
  std::string script = fmt::format(
                           "set xrange [-0.6:{:.1f}]\nset yrange [0:{:.9g}]\nset xlabel '{}'\n"
                           "set ylabel '{}'\nset boxwidth {:.6f} absolute\nset grid noxtics\n",
                           static_cast<double>(chart.groups.size()) - 0.4, chart.y_upper,
                           chart.x_label, chart.y_label, width * 0.94) +
                       slot_tics("x", chart.groups, chart.most_labels) + "plot ";
  for (std::size_t s = 0; s < chart.series.size(); ++s) {
    const double offset = (static_cast<double>(s) + 0.5) * width - 0.4;
    const BarSeries& one = chart.series[s];
    const std::string_view color =
        one.color.empty() ? kLineColors[s % kLineColors.size()] : std::string_view(one.color);
    script += fmt::format(
        "{}'{}' using ($1+{:.6f}):{} with boxes linecolor rgb '{}'{} title '{}'",
        s == 0 ? "" : ", \\\n  ", file, offset, s + 2, color,
        one.density < 1.0 ? fmt::format(" fillstyle solid {:g} border", one.density) : "",
        one.title);
  }
  return script + "\n";
}

std::string bar_data(const BarChart& chart) {
  std::string data;
  for (std::size_t g = 0; g < chart.groups.size(); ++g) {
    std::vector<double> row{static_cast<double>(g)};
    for (const BarSeries& series : chart.series) row.push_back(series.values.at(g));
    data += data_row(row);
  }
  return data;
}

void draw_bars(const BarChart& chart, Figure& figure) {
  figure.width = 720;
  figure.height = 320;
  figure.script = bar_commands(chart, "bars.tsv");
  figure.data = {{"bars.tsv", bar_data(chart)}};
}

}  // namespace blockscope
