// One matrix as an ImPlot heatmap: a texture, axes in the units given, a colour bar, the value
// under the cursor.
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
  dim,        ///< in the background
  frame,      ///< lit up
  frame_dot,  ///< lit up, and somebody wants it so
  dim_cross   ///< in the background, and somebody wants it so
};

struct HeatmapHit {
  std::size_t column = 0, row = 0;  ///< of the picture
  bool clicked = false;
};

struct HeatmapPlot {
  std::string id;  ///< distinct within the window; also names the texture
  std::string title, x_label, y_label, unit;
  bool transpose = false;  ///< rows of the matrix along x
  /// What cells are called where it is not their coordinate: recorded layers and heads.
  const std::vector<std::int64_t>*x_numbers = nullptr, *y_numbers = nullptr;
  double first_x = 0, first_y = 0;  ///< coordinate of the first column and row
  float width = 0.0F, height = 0.0F;
  std::optional<float> low, high;  ///< of the colours; unset: the values' own or the locked range
  bool own_range = false;          ///< low and high hold whatever range is locked
  /// Cells to mark with a frame, in the plot's coordinates.
  std::optional<double> mark_x, mark_y;
  std::vector<CellMark> marks;  ///< [rows, columns] of the picture; empty: none
  /// Text for a cell instead of its coordinates and value.
  std::function<std::string(const HeatmapHit&)> tooltip;
};

/// The range the colours cover: locked, given, or the values' own.
std::pair<float, float> colour_range(const Appearance& appearance, const MatrixPayload& matrix,
                                     const HeatmapPlot& plot);

/// Returns the cell under the cursor.
std::optional<HeatmapHit> draw_heatmap(PanelContext& context, const HeatmapPlot& plot,
                                       const std::shared_ptr<const MatrixPayload>& matrix);

}  // namespace blockscope
