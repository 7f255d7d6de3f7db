// What report() and figures() share: drawing, and handing the drawings over.
#pragma once

#include <vector>

#include "analysis/figures/gnuplot.h"
#include "python/bindings.h"

namespace blockscope::python {

/// As SVG, without Python's lock; Ctrl-C meanwhile comes out as KeyboardInterrupt.
std::vector<RenderedFigure> render(const Gnuplot& drawer, const std::vector<Figure>& drawings,
                                   std::size_t threads);

/// name, title, caption and SVG of each.
nb::list to_list(const std::vector<Figure>& drawings, const std::vector<RenderedFigure>& rendered);

}  // namespace blockscope::python
