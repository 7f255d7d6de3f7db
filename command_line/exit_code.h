// How a command ends: what it throws becomes one line on stderr and an exit code. The binary and
// its modules end their commands here.
#pragma once

#include <CLI/App.hpp>
#include <functional>
#include <string>

namespace blockscope {

/// Calls `run`, which parses argv with `app` and so runs the command: 0 done, 1 failed (also when
/// what it printed could not be written), 2 usage, 128 + the signal that stopped it; 141, without a
/// word, when nobody reads its output any more, as for programs that a broken pipe ends. `argv`
/// names the command whose --help a message mentions.
int exit_code_of(CLI::App& app, int argc, char** argv, const std::function<void()>& run);

/// What is wrong with an option, in the words of all commands.
std::string words_of(const CLI::ParseError& error);

}  // namespace blockscope
