// The `blockscope` command: picks the command and runs it.
#include <fmt/format.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <cstdlib>
#include <string>

#include "cli/commands.h"
#include "cli/modules.h"
#include "cmake/build_info/build_info.h"
#include "command_line/exit_code.h"
#include "command_line/interrupt.h"
#include "command_line/options.h"
#include "command_line/standard_streams.h"
#include "decode_record/base/error.h"

namespace {

using blockscope::UsageError;

constexpr void (*kAddCommand[])(CLI::App&) = {
    blockscope::add_info_command,      blockscope::add_diff_command,
    blockscope::add_export_command,    blockscope::add_analyze_command,
    blockscope::add_calibrate_command, blockscope::add_report_command,
    blockscope::add_import_command,    blockscope::add_repack_command,
    blockscope::add_doctor_command,
};

bool is_command(CLI::App& app, const std::string& name) {
  const auto named = [&](const CLI::App* known) { return known->check_name(name); };
  return !app.get_subcommands(named).empty();
}

/// If the arguments have --plugin, Python takes the command over.
void with_plugins(int argc, char** argv) {
  if (blockscope::names_plugin(argc, argv)) {
    blockscope::run_python_command(blockscope::kPlugins, 1, argc, argv);
  }
}

int run(CLI::App& app, int argc, char** argv) {
  std::string command = argc > 1 ? argv[1] : "";
  std::string help = "--help";
  if (command == "help" && (argc == 2 || is_command(app, argv[2]))) {  // means --help
    command = argc == 2 ? help : argv[2];
    argv[1] = argc == 2 ? help.data() : argv[2];
    if (argc > 2) argv[2] = help.data();
  }
  if (command.empty()) {
    throw UsageError("no command given. HINT: blockscope --help lists them");
  }
  if (const auto* in_module = blockscope::find_module_command(command); in_module != nullptr) {
    if (in_module->module == &blockscope::kRuntimeModule) with_plugins(argc, argv);
    return blockscope::run_module_command(*in_module, argc, argv);
  }
  if (command == blockscope::kBuildOps.name) {
    blockscope::run_python_command(blockscope::kBuildOps, 2, argc, argv);
  }
  const bool is_option = command[0] == '-';
  if (is_option ? app.get_option_no_throw(command) == nullptr : !is_command(app, command)) {
    throw UsageError(fmt::format("unknown {} '{}'. HINT: blockscope --help lists them",
                                 is_option ? "option" : "command", command));
  }
  if (!is_option && app.get_subcommand(command)->get_option_no_throw("--plugin") != nullptr) {
    with_plugins(argc, argv);
  }
  blockscope::parse_arguments(app, argc, argv);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  blockscope::end_on_signals();
  blockscope::take_standard_descriptors();
  const auto& build = blockscope::build_info();
  CLI::App app{"See what attention does at every denoising step of a block-diffusion model.",
               "blockscope"};
  app.set_version_flag("--version",
                       fmt::format("blockscope {} ({})", build.version, build.git_describe));
  app.require_subcommand(1);
  app.footer(
      "Example: blockscope capture models/needle --prompt \"...\" -o run.h5\n"
      "Exit codes: 0 done, 1 failed, 2 usage, 128 + n stopped by signal n.\n"
      "`blockscope doctor` shows what works on this machine.");
  for (const auto& command : blockscope::kModuleCommands) {
    app.add_subcommand(std::string(command.name), std::string(command.description));
  }
  for (const auto add_command : kAddCommand) {
    add_command(app);
  }
  app.add_subcommand(std::string(blockscope::kBuildOps.name),
                     std::string(blockscope::kBuildOps.description));
  const int exit_code = blockscope::exit_code_of(app, argc, argv, [&] {
    const int of_module = run(app, argc, argv);  // a module reports its own errors
    if (of_module != 0) throw CLI::RuntimeError(of_module);
  });
  // All output is flushed and all files are closed. Only LibTorch's static destructors are left,
  // which take 80 ms.
  std::_Exit(exit_code);
}
