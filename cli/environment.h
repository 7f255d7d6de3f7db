// Reads the environment variables the runtime honours.
#pragma once

#include <string>

#include "analysis/figures/gnuplot.h"
#include "probe/run/environment.h"

namespace blockscope {

/// The variables that decide where model ids are looked up.
HubEnvironment read_hub_environment();

/// The hub's variables and the launchers', as they are.
Environment read_environment();

/// Where figures find gnuplot: BLOCKSCOPE_GNUPLOT and PATH.
GnuplotPlace gnuplot_place();

/// Where the viewer keeps its layout: XDG_CONFIG_HOME or HOME/.config; empty when neither is set.
std::string viewer_config_folder();

}  // namespace blockscope
