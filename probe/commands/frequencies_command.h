// `blockscope frequencies`: counts how often each token of a vocabulary occurs in texts.
#pragma once

#include <CLI/App.hpp>

#include "probe/run/environment.h"

namespace blockscope {

/// Adds the subcommand; its callback throws blockscope::Error.
void add_frequencies_command(CLI::App& app, const Environment& environment);

}  // namespace blockscope
