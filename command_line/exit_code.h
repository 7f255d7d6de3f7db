// How a command ends: an exception becomes one line on stderr and an exit code. The binary and its
// modules end their commands with these functions.
#pragma once

#include <CLI/App.hpp>
#include <functional>
#include <string>

namespace blockscope {

/// Calls `run`, which parses argv with `app` and so runs the command. Returns 0 if done, 1 if it
/// failed or its output could not be written, 2 for wrong usage, 128 + n if signal n stopped it.
/// Returns 141 without a message if nobody reads the output any more, as a broken pipe ends other
/// programs. `argv` names the command whose --help a message mentions.
int exit_code_of(CLI::App& app, int argc, char** argv, const std::function<void()>& run);

/// What is wrong with an option, worded the same way for all commands.
std::string words_of(const CLI::ParseError& error);

}  // namespace blockscope
