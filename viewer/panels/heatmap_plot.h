// One matrix as an ImPlot heatmap: a texture, axes, a colour bar, and the value under the cursor.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "viewer/panels/panels.h"

namespace blockscope {

enum class CellMark : std::uint8_t {
  none,
  dim,        ///< darkened
  frame,      ///< highlighted
  frame_dot,  ///< highlighted, and pinned to that
  dim_cross   ///< darkened, and pinned to that
};

struct HeatmapHit {
  std::size_t column = 0, row = 0;  ///< of the picture
  bool clicked = false;
};

struct HeatmapPlot {
  std::string id;  ///< distinct within the window; also names the texture
  std::string title, x_label, y_label, unit;
  bool transpose = false;  ///< the rows of the matrix go along x
  /// Names of the cells if they are not their coordinates, such as recorded layers and heads.
  const std::vector<std::int64_t>*x_numbers = nullptr, *y_numbers = nullptr;
  double first_x = 0, first_y = 0;  ///< coordinate of the first column and row
  float width = 0.0F, height = 0.0F;
  std::optional<float> low, high;  ///< of the colours; unset: the locked range, or the values' own
  bool own_range = false;          ///< low and high apply even if a range is locked
  /// Cells to mark with a frame, in the plot's coordinates.
  std::optional<double> mark_x, mark_y;
  std::vector<CellMark> marks;  ///< [rows, columns] of the picture; empty: none
  /// Text for a cell instead of its coordinates and value.
  std::function<std::string(const HeatmapHit&)> tooltip;
};

/// The range of the colours: the locked one, the given one, or the values' own.
std::pair<float, float> colour_range(const Appearance& appearance, const MatrixPayload& matrix,
                                     const HeatmapPlot& plot);

/// Returns the cell under the cursor.
std::optional<HeatmapHit> draw_heatmap(PanelContext& context, const HeatmapPlot& plot,
                                       const std::shared_ptr<const MatrixPayload>& matrix);

}  // namespace blockscope
