// What heatmaps of similarity matrices share: data files, one colour range, one colour bar.
#pragma once

#include <span>
#include <string>

#include "analysis/figures/panels.h"
#include "analysis/metrics/token_similarity.h"

namespace blockscope {

/// Lines of x, y, value for cells_command(): the value [x, y] of the matrix, counted from `first`.
/// Cells without a value are left out and stay blank.
std::string matrix_cells(const SimilarityMatrix& matrix, double first = 0.0);
/// The same line by line; empty for a value that is not finite.
std::string cell_line(double x, double y, double value);
/// What comes after `plot`: one coloured square per line of the file. (gnuplot's images need at
/// least two cells a side and every cell.)
std::string cells_command(const std::string& file);

/// From a round number at or below the smallest value up to 1; no finite value: [0, 1].
struct ColorRange {
  double lower = 0.0;
  bool empty = true;  ///< no finite value
};
ColorRange color_range(std::span<const SimilarityMatrix> matrices);

/// `set cbrange` and a colour bar to the right of the whole grid, whose panels.right leaves room.
/// Drawn with the next plot only if `unset colorbox` follows it.
std::string color_bar(const Panels& panels, double lower, double upper, const std::string& label);

/// Ranges for `size` cells a side, the first row on top, and few tick labels.
std::string cell_axes(std::size_t columns, std::size_t rows);

}  // namespace blockscope
