// Reads the environment variables the runtime honours.
#pragma once

#include <string>

#include "analysis/figures/gnuplot.h"
#include "probe/run/environment.h"

namespace blockscope {

/// The variables that decide where model ids are looked up.
HubEnvironment read_hub_environment();

/// Throws UsageError when a launcher's rank variables are not numbers or contradict each other.
Environment read_environment();

/// Where figures find gnuplot: BLOCKSCOPE_GNUPLOT and PATH.
GnuplotPlace gnuplot_place();

/// Where the viewer keeps its layout: XDG_CONFIG_HOME or HOME/.config; empty when neither is set.
std::string viewer_config_folder();

}  // namespace blockscope
