// libblockscope_viewer.so: the command that needs a window system, with one C entry point.
#include <CLI/CLI.hpp>

#include "cli/environment.h"
#include "command_line/exit_code.h"
#include "command_line/options.h"
#include "viewer/view_command.h"

extern "C" int blockscope_viewer_run(int argc, char** argv) {
  CLI::App app{"", "blockscope"};
  app.require_subcommand(1);
  return blockscope::exit_code_of(app, argc, argv, [&] {
    blockscope::add_view_command(app, blockscope::viewer_config_folder());
    blockscope::parse_arguments(app, argc, argv);
  });
}
