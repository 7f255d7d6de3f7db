// Shared parts of similarity heatmaps: data files, one colour range, one colour bar.
#pragma once

#include <span>
#include <string>

#include "analysis/figures/panels.h"
#include "analysis/metrics/token_similarity.h"

namespace blockscope {

/// Lines "x y value" for cells_command(), with value = matrix[x, y] and coordinates from `first`.
/// Cells without a value are left out and stay blank.
std::string matrix_cells(const SimilarityMatrix& matrix, double first = 0.0);
/// One such line; empty if the value is not finite.
std::string cell_line(double x, double y, double value);
/// The arguments of `plot`: one coloured square per line of the file. (gnuplot's images need every
/// cell, and at least two cells a side.)
std::string cells_command(const std::string& file);

/// From a round number at or below the smallest value up to 1. Without a finite value: [0, 1].
struct ColorRange {
  double lower = 0.0;
  bool empty = true;  ///< no finite value
};
ColorRange color_range(std::span<const SimilarityMatrix> matrices);

/// `set cbrange` and a colour bar to the right of the whole grid; panels.right must leave room for
/// it. Every plot draws it, so put `unset colorbox` after the first one.
std::string color_bar(const Panels& panels, double lower, double upper, const std::string& label);

/// Ranges for `size` cells a side, the first row on top, and few tick labels.
std::string cell_axes(std::size_t columns, std::size_t rows);

}  // namespace blockscope
