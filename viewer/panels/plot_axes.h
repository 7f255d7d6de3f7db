// How the panels' plots label their axes.
#pragma once

#include <implot.h>

#include <cstdint>
#include <vector>

#include "viewer/model/colormap.h"

namespace blockscope {

inline ImVec4 colour4(Colour colour) { return ImGui::ColorConvertU32ToFloat4(colour); }

/// Labels at whole numbers only: there is no layer, head, step or token 0.5. With `names`, which
/// must live until EndPlot, coordinate i is called names[i]: recorded layers and heads. Call it
/// after SetupAxes.
void whole_numbers(ImAxis axis, const std::vector<std::int64_t>* names = nullptr);

}  // namespace blockscope
