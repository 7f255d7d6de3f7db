// What libblockscope_probe.so offers: its one C entry point for the binary, and functions for a
// program that hosts commands, such as the Python package.
#pragma once

#include <CLI/App.hpp>
#include <functional>
#include <string>
#include <vector>

extern "C" int blockscope_probe_run(int argc, char** argv);

namespace blockscope {

/// Runs argv[1] for the caller's CommandHost. `description`: the command line that a trace records.
/// Throws Error instead of printing it; UsageError for arguments that the parser refuses.
void run_hosted_command(int argc, char** argv, const std::string& description);

/// Parses argv with `app`, calls `work`, and throws the same errors as run_hosted_command.
void run_reported(CLI::App& app, int argc, char** argv, const std::function<void()>& work);

/// An option of a command, for callers that offer it under its name.
struct HostedOption {
  std::string name;  ///< "--gen-length"; of a positional argument: "model"
  std::string help;
  bool takes_value = true;  ///< false: a switch
  bool repeats = false;     ///< may be given several times
  bool lists = false;       ///< takes a list, separated by commas
  std::string initial;      ///< default value; empty: none
};
/// The options of a command. Throws UsageError for an unknown command.
std::vector<HostedOption> hosted_options(const std::string& command);

}  // namespace blockscope
