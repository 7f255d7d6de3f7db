// The commands that live in the binary itself. Each is one file `<name>_command.cpp` that adds a
// subcommand with its options and a callback. To add one: declare it here and list it in main.cpp.
//
// A callback returns normally for exit code 0, throws blockscope::UsageError for 2, any other
// exception for 1, and CLI::RuntimeError(code) to choose a code without an error line (`diff`).
#pragma once

#include <CLI/App.hpp>

namespace blockscope {

/// What this machine and this build can do, a verdict per line.
void add_doctor_command(CLI::App& app);

}  // namespace blockscope
