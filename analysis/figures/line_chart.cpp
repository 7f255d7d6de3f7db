#include "analysis/figures/line_chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "analysis/figures/palette.h"
#include "analysis/figures/panels.h"

namespace blockscope {
namespace {

constexpr std::size_t kMaxTicLabels = 24;

/// Adds a margin, so that markers at the ends are not cut off.
std::string x_range(const LineChart& chart) {
  const std::vector<Curve>& curves = chart.curves;
  double first = 0.0;
  double last = 1.0;
  bool any = false;
  for (const Curve& curve : curves) {
    if (curve.x.empty()) continue;
    first = any ? std::min(first, curve.x.front()) : curve.x.front();
    last = any ? std::max(last, curve.x.back()) : curve.x.back();
    any = true;
  }
  if (chart.x_from) first = std::min(*chart.x_from, last);
  const double margin = last > first ? 0.02 * (last - first) : 0.5;
  return fmt::format("set xrange [{:.9g}:{:.9g}]\n", first - margin, last + margin);
}

}  // namespace

void look_like_methods(std::vector<Curve>& curves) {
  std::vector<std::string> names;
  for (const Curve& curve : curves) names.push_back(curve.title);
  const std::vector<LineLook> looks = method_looks(names);
  for (std::size_t i = 0; i < curves.size(); ++i) {
    curves[i].color = looks[i].color;
    curves[i].point = looks[i].point;
    curves[i].dash = looks[i].dash;
  }
}

bool has_values(const Curve& curve) {
  return std::ranges::any_of(curve.y, [](double y) { return std::isfinite(y); });
}

std::string chart_commands(const LineChart& chart, const std::string& file) {
  std::string script = x_range(chart);
  const double headroom = 0.03 * (chart.y_upper - chart.y_lower);
  script += fmt::format("set yrange [{:.9g}:{:.9g}]\nset xlabel '{}'\nset ylabel '{}'\n",
                        chart.y_lower, chart.y_upper + headroom, chart.x_label, chart.y_label);
  if (!chart.x_names.empty()) script += slot_tics("x", chart.x_names, kMaxTicLabels);
  script += "plot ";
  for (std::size_t i = 0; i < chart.curves.size(); ++i) {
    const Curve& curve = chart.curves[i];
    LineLook look = line_look(i);
    if (!curve.color.empty()) look.color = curve.color;
    if (curve.point != 0) look.point = curve.point;
    if (curve.dash != 0) look.dash = curve.dash;
    const bool markers = curve.point_size > 0.0;
    script +=
        fmt::format("{}'{}' index {} using 1:2 with {} {}{} title '{}'", i == 0 ? "" : ", \\\n  ",
                    file, i, markers ? "linespoints" : "lines", look_commands(look, markers),
                    markers ? fmt::format(" pointsize {}", curve.point_size) : "", curve.title);
  }
  return script + "\n";
}

std::string chart_data(const LineChart& chart) {
  std::string text;
  for (const Curve& curve : chart.curves) {
    for (std::size_t i = 0; i < curve.x.size(); ++i) text += data_row({curve.x[i], curve.y[i]});
    text += "\n\n";
  }
  return text;
}

void draw_chart(const LineChart& chart, Figure& figure) {
  figure.width = 720;
  figure.height = 320;
  figure.script = chart_commands(chart, "curves.tsv");
  figure.data = {{"curves.tsv", chart_data(chart)}};
}

std::vector<Curve> curves_of(const ResultArray& array, const std::string& x,
                             const std::string& curves, const std::string& title_prefix) {
  const ResultArray flat =
      curves.empty() ? mean_over_others(array, {x}) : mean_over_others(array, {curves, x});
  const ResultAxis& along = flat.axes.back();
  const std::size_t count = curves.empty() ? 1 : flat.axes[0].size();
  std::vector<Curve> list(count);
  for (std::size_t c = 0; c < count; ++c) {
    list[c].title = curves.empty() ? title_prefix : title_prefix + flat.axes[0].label(c);
    for (std::size_t i = 0; i < along.size(); ++i) {
      list[c].x.push_back(along.index.empty() ? static_cast<double>(i) : along.index[i]);
      list[c].y.push_back(flat.values[c * along.size() + i]);
    }
  }
  return list;
}

std::vector<Curve> merge_equal(const std::vector<Curve>& curves, const std::string& prefix) {
  std::vector<Curve> merged;
  for (const Curve& curve : curves) {
    const auto same = std::ranges::find_if(
        merged, [&](const Curve& other) { return other.x == curve.x && other.y == curve.y; });
    if (same == merged.end()) {
      merged.push_back(curve);
    } else {
      same->title += ", " + curve.title.substr(std::min(prefix.size(), curve.title.size()));
    }
  }
  return merged;
}

NumberTable curve_numbers(const std::string& x_name, const std::vector<Curve>& curves) {
  NumberTable table{{x_name}, {}};
  std::vector<double> places;
  for (const Curve& curve : curves) {
    table.header.push_back(curve.title);
    places.insert(places.end(), curve.x.begin(), curve.x.end());
  }
  std::ranges::sort(places);
  places.erase(std::unique(places.begin(), places.end()), places.end());
  for (const double place : places) {
    std::vector<std::string> row{fmt::format("{:g}", place)};
    for (const Curve& curve : curves) {
      const auto at = std::ranges::find(curve.x, place);
      row.push_back(at == curve.x.end()
                        ? report_number(std::nan(""))
                        : report_number(curve.y[static_cast<std::size_t>(at - curve.x.begin())]));
    }
    table.rows.push_back(std::move(row));
  }
  return table;
}

double largest_of(const std::vector<Curve>& curves) {
  double largest = 0.0;
  for (const Curve& curve : curves) {
    for (const double y : curve.y) {
      if (std::isfinite(y)) largest = std::max(largest, y);
    }
  }
  return largest;
}

double round_up_to(double largest) {
  if (!(largest > 0.0)) return 1.0;
  const double unit = std::pow(10.0, std::floor(std::log10(largest)));
  for (const double factor : {1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0}) {
    if (largest <= factor * unit * (1.0 + 1e-9)) return factor * unit;
  }
  return 10.0 * unit;
}

}  // namespace blockscope
