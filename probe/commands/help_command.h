// `blockscope help policy|cache|strategy [NAME]`: the tables of choices that have options.
#pragma once

#include <CLI/App.hpp>

namespace blockscope {

/// Adds the subcommand; its callback throws blockscope::Error.
void add_help_command(CLI::App& app);

}  // namespace blockscope
