// The `blockscope` command: picks the command, catches once, turns errors into exit codes
// (0 done, 1 failed, 2 usage) and one line on stderr.
#include <fmt/format.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <cstdio>
#include <string>

#include "cli/commands.h"
#include "cli/modules.h"
#include "cmake/build_info/build_info.h"
#include "decode_record/error.h"

namespace {

using blockscope::UsageError;

constexpr void (*kAddCommand[])(CLI::App&) = {
    blockscope::add_info_command,      blockscope::add_diff_command,
    blockscope::add_export_command,    blockscope::add_analyze_command,
    blockscope::add_calibrate_command, blockscope::add_report_command,
    blockscope::add_repack_command,    blockscope::add_doctor_command,
};

int report(const std::string& message, int exit_code) {
  fmt::print(stderr, "blockscope: error: {}\n", message);
  return exit_code;
}

int run(CLI::App& app, int argc, char** argv) {
  const std::string command = argc > 1 ? argv[1] : "";
  if (command.empty()) {
    throw UsageError("no command given. HINT: blockscope --help lists them");
  }
  if (const auto* in_module = blockscope::find_module_command(command); in_module != nullptr) {
    return blockscope::run_module_command(*in_module, argc, argv);
  }
  const auto has_this_name = [&](const CLI::App* known) { return known->check_name(command); };
  const bool is_option = command[0] == '-';
  if (is_option ? app.get_option_no_throw(command) == nullptr
                : app.get_subcommands(has_this_name).empty()) {
    throw UsageError(fmt::format("unknown {} '{}'. HINT: blockscope --help lists them",
                                 is_option ? "option" : "command", command));
  }
  app.parse(argc, argv);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const auto& build = blockscope::build_info();
  CLI::App app{"See what attention does at every denoising step of a block-diffusion model.",
               "blockscope"};
  app.set_version_flag("--version",
                       fmt::format("blockscope {} ({})", build.version, build.git_describe));
  app.require_subcommand(1);
  app.footer(
      "Example: blockscope capture models/needle --prompt \"...\" -o run.h5\n"
      "Exit codes: 0 done, 1 failed, 2 usage. `blockscope doctor` tells what works here.");
  for (const auto& command : blockscope::kModuleCommands) {
    app.add_subcommand(std::string(command.name), std::string(command.description));
  }
  for (const auto add_command : kAddCommand) {
    add_command(app);
  }
  try {
    return run(app, argc, argv);
  } catch (const CLI::RuntimeError& error) {
    return error.get_exit_code();
  } catch (const CLI::Success& request) {  // --help, --version
    return app.exit(request);
  } catch (const CLI::ParseError& error) {
    return report(std::string(error.what()) + ". HINT: blockscope --help", 2);
  } catch (const UsageError& error) {
    return report(error.what(), 2);
  } catch (const std::exception& error) {
    return report(error.what(), 1);
  }
}
