// `blockscope help policy|strategy|cache|family [NAME]`: lists the choices with their options, and
// the model families.
#pragma once

#include <CLI/App.hpp>

namespace blockscope {

/// Adds the subcommand; its callback throws blockscope::Error.
void add_help_command(CLI::App& app);

}  // namespace blockscope
