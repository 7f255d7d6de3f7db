// libblockscope_viewer.so: the command that needs a window system, behind one C entry point.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>

#include "cli/environment.h"
#include "decode_record/error.h"
#include "viewer/view_command.h"

namespace {

int report(const std::string& message, int exit_code) {
  fmt::print(stderr, "blockscope: error: {}\n", message);
  return exit_code;
}

}  // namespace

extern "C" int blockscope_viewer_run(int argc, char** argv) {
  CLI::App app{"", "blockscope"};
  app.require_subcommand(1);
  try {
    blockscope::add_view_command(app, blockscope::viewer_config_folder());
    app.parse(argc, argv);
    return 0;
  } catch (const CLI::Success& request) {  // --help
    return app.exit(request);
  } catch (const CLI::ParseError& error) {
    return report(fmt::format("{}. HINT: blockscope view --help", error.what()), 2);
  } catch (const blockscope::UsageError& error) {
    return report(error.what(), 2);
  } catch (const std::exception& error) {
    return report(error.what(), 1);
  }
}
