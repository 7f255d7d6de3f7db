#include "analysis/figures/heatmap.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "analysis/figures/gnuplot.h"

namespace blockscope {
namespace {

constexpr int kBarWidth = 12;
constexpr int kBarGap = 14;

/// A tick distance that gives at most four labels on an axis of `cells` cells.
int tick_distance(std::size_t cells) {
  for (const int distance : {1, 2, 4, 8, 16, 32, 64, 128, 256}) {
    if (cells <= static_cast<std::size_t>(distance) * 4) return distance;
  }
  return 512;
}

}  // namespace

std::string cell_line(double x, double y, double value) {
  return std::isfinite(value) ? data_row({x, y, value}) : "";
}

std::string matrix_cells(const SimilarityMatrix& matrix, double first) {
  std::string text;
  for (std::size_t x = 0; x < matrix.rows; ++x) {
    for (std::size_t y = 0; y < matrix.columns; ++y) {
      text += cell_line(first + static_cast<double>(x), first + static_cast<double>(y),
                        static_cast<double>(matrix.values[x * matrix.columns + y]));
    }
  }
  // gnuplot takes an empty plot as an error. NaN is not drawn.
  return text.empty() ? data_row({0.0, 0.0, std::nan("")}) : text;
}

std::string cells_command(const std::string& file) {
  return fmt::format(
      "'{}' using 1:2:($1-0.5):($1+0.5):($2-0.5):($2+0.5):3 with boxxyerror fillcolor palette",
      file);
}

ColorRange color_range(std::span<const SimilarityMatrix> matrices) {
  double least = std::numeric_limits<double>::infinity();
  for (const SimilarityMatrix& matrix : matrices) {
    for (const float value : matrix.values) {
      if (std::isfinite(value)) least = std::min(least, static_cast<double>(value));
    }
  }
  if (!std::isfinite(least)) return {};
  return {round_down_to(std::max(least, -1.0), 1.0), false};
}

std::string color_bar(const Panels& panels, double lower, double upper, const std::string& label) {
  const double w = panels.width();
  const double h = panels.height();
  return fmt::format(
      "set cbrange [{:.9g}:{:.9g}]\nset cblabel {} offset 1.2,0\nset cbtics scale 0.4 nomirror\n"
      "set colorbox vertical user origin screen {:.6f}, screen {:.6f} size screen {:.6f}, screen "
      "{:.6f} noborder\n",
      lower, upper, gnuplot_text(label), (w - panels.right + kBarGap) / w, panels.bottom / h,
      kBarWidth / w, (h - panels.top - panels.bottom) / h);
}

std::string cell_axes(std::size_t columns, std::size_t rows) {
  return fmt::format(
      "unset grid\nset border 15 linecolor rgb 'black' linewidth 0.5\n"
      "set xrange [-0.5:{:.1f}]\nset yrange [{:.1f}:-0.5]\nset xtics 0, {}\nset ytics 0, {}\n",
      static_cast<double>(columns) - 0.5, static_cast<double>(rows) - 0.5, tick_distance(columns),
      tick_distance(rows));
}

}  // namespace blockscope
