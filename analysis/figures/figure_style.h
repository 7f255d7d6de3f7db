// The look that all figures share, as gnuplot commands.
#pragma once

#include <string>

namespace blockscope {

/// Axes, grid, key, viridis, line styles 1..7 (palette.h). Texts are enhanced: "A_{out}".
std::string figure_style();

}  // namespace blockscope
