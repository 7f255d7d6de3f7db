// A grid of plots in one drawing, with margins in pixels so that axes line up.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace blockscope {

/// A grid of equal plots, filled row by row. All numbers are CSS pixels.
struct Panels {
  std::size_t count = 1;
  std::size_t columns = 1;
  int plot_width = 240;  ///< between the axes
  int plot_height = 140;
  int left = 78;  ///< room for tick labels and the y label of the first column
  int right = 20;
  int top = 44;     ///< room for the key and the first row's titles
  int bottom = 60;  ///< room for tick labels and the x label of the last row
  int gap_x = 24;
  int gap_y = 62;

  std::size_t rows() const { return (count + columns - 1) / columns; }
  std::size_t row(std::size_t i) const { return i / columns; }
  std::size_t column(std::size_t i) const { return i % columns; }
  /// Plot i has no plot below it, so it has the x label.
  bool is_lowest(std::size_t i) const { return i + columns >= count; }
  int width() const;
  int height() const;
  /// gnuplot commands that put the next plot into place i.
  std::string place(std::size_t i) const;
  /// A point above the grid, in gnuplot's screen coordinates: "screen 0.97, screen 0.99".
  std::string at(int x, int y) const;
};

/// The lower end of an axis that ends at `upper`: a round number at or below `smallest`.
double round_down_to(double smallest, double upper);
/// "The y axis starts at 0.9, not at 0. " for a caption; empty if it starts at 0.
std::string axis_start_text(double start);

/// `set xtics` (axis "x", "y" or "cb") with `labels` at 0, 1, ...; only every n-th if there are
/// more than `shown`.
std::string slot_tics(const std::string& axis, const std::vector<std::string>& labels,
                      std::size_t shown);

}  // namespace blockscope
