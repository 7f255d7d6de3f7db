// `blockscope lens`: what the model would predict from the input of each layer.
#pragma once

#include <CLI/App.hpp>

#include "analysis/figures/gnuplot.h"
#include "probe/run/environment.h"

namespace blockscope {

/// Adds the subcommand; its callback throws blockscope::Error.
void add_lens_command(CLI::App& app, const Environment& environment,
                      const GnuplotPlace& gnuplot_place);

}  // namespace blockscope
