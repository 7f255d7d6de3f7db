// `blockscope study NAME MODEL`: makes the papers' tables and figures for any model.
#pragma once

#include <CLI/App.hpp>

#include "analysis/figures/gnuplot.h"
#include "probe/run/environment.h"

namespace blockscope {

void add_study_command(CLI::App& app, const Environment& environment,
                       const GnuplotPlace& gnuplot_place);

}  // namespace blockscope
