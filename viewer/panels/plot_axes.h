// How the panels' plots label their axes.
#pragma once

#include <implot.h>

#include <cstdint>
#include <vector>

#include "viewer/model/colormap.h"

namespace blockscope {

inline ImVec4 colour4(Colour colour) { return ImGui::ColorConvertU32ToFloat4(colour); }

/// Puts labels at whole numbers only, because no layer, head, step or token is 0.5. `names`: labels
/// coordinate i with names[i] (recorded layers and heads); it must live until EndPlot. Call this
/// after SetupAxes.
void whole_numbers(ImAxis axis, const std::vector<std::int64_t>* names = nullptr);

}  // namespace blockscope
