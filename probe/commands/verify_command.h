#pragma once

#include <CLI/App.hpp>

#include "analysis/figures/gnuplot.h"
#include "probe/run/environment.h"

namespace blockscope {

/// `blockscope verify`: what an attention policy or a draft saves and costs on given prompts.
void add_verify_command(CLI::App& app, const Environment& environment,
                        const GnuplotPlace& gnuplot_place);

}  // namespace blockscope
