#include "analysis/figures/panels.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "analysis/figures/gnuplot.h"

namespace blockscope {

int Panels::width() const {
  const int n = static_cast<int>(std::min(columns, std::max<std::size_t>(count, 1)));
  return left + n * plot_width + (n - 1) * gap_x + right;
}

int Panels::height() const {
  const int n = static_cast<int>(std::max<std::size_t>(rows(), 1));
  return top + n * plot_height + (n - 1) * gap_y + bottom;
}

std::string Panels::place(std::size_t i) const {
  const double w = width();
  const double h = height();
  const double x = left + static_cast<double>(column(i)) * (plot_width + gap_x);
  const double y = top + static_cast<double>(row(i)) * (plot_height + gap_y);
  return fmt::format(
      "set lmargin at screen {:.6f}\nset rmargin at screen {:.6f}\n"
      "set tmargin at screen {:.6f}\nset bmargin at screen {:.6f}\n",
      x / w, (x + plot_width) / w, 1.0 - y / h, 1.0 - (y + plot_height) / h);
}

std::string Panels::at(int x, int y) const {
  return fmt::format("screen {:.6f}, screen {:.6f}", static_cast<double>(x) / width(),
                     1.0 - static_cast<double>(y) / height());
}

double round_down_to(double smallest, double upper) {
  const double span = std::max(upper - smallest, 1e-4);
  const double unit = std::pow(10.0, std::floor(std::log10(span)));
  const double step = span / unit < 2.0 ? unit / 5.0 : span / unit < 5.0 ? unit / 2.0 : unit;
  const double rounded = upper - std::ceil((upper - smallest) / step - 1e-9) * step;
  return rounded < upper ? rounded : upper - step;
}

std::string axis_start_text(double start) {
  if (std::abs(start) < 1e-9) return "";
  return fmt::format("The y axis starts at {:g}, not at 0. ", start);
}

std::string slot_tics(const std::string& axis, const std::vector<std::string>& labels,
                      std::size_t shown) {
  const std::size_t stride = std::max<std::size_t>(1, (labels.size() + shown - 1) / shown);
  std::string tics;
  for (std::size_t i = 0; i < labels.size(); i += stride) {
    tics += fmt::format("{}{} {}", tics.empty() ? "" : ", ", gnuplot_text(labels[i]), i);
  }
  // A comment for readers of the script: the names of all slots.
  std::string names;
  for (const std::string& label : labels) names += " " + gnuplot_text(label);
  return fmt::format("# names {}{}\nset {}tics ({})\n", axis, names, axis, tics);
}

}  // namespace blockscope
