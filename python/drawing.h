// Shared parts of report() and figures(): drawing, and returning the drawings to Python.
#pragma once

#include <vector>

#include "analysis/figures/gnuplot.h"
#include "analysis/results/metric_result.h"
#include "python/bindings.h"

namespace blockscope::python {

/// A result that Python holds: a dict as results.py makes it. Throws UsageError.
MetricResult to_result(const nb::dict& item);

/// Draws SVG without Python's lock. Ctrl-C raises KeyboardInterrupt.
std::vector<RenderedFigure> render(const Gnuplot& drawer, const std::vector<Figure>& drawings,
                                   std::size_t threads);

/// Name, title, caption and SVG of each drawing.
nb::list to_list(const std::vector<Figure>& drawings, const std::vector<RenderedFigure>& rendered);

}  // namespace blockscope::python
