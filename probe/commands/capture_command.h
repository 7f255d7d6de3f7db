// `blockscope capture`: decode prompts with a checkpoint and record a trace.
#pragma once

#include <CLI/App.hpp>

#include "probe/run/environment.h"

namespace blockscope {

/// Adds the subcommand; its callback throws blockscope::Error, or CLI::RuntimeError with the exit
/// code. `command_line` goes into the trace.
void add_capture_command(CLI::App& app, const Environment& environment,
                         const std::string& command_line);

}  // namespace blockscope
