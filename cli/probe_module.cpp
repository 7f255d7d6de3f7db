// libblockscope_probe.so: the commands that need LibTorch, with one C entry point.
#include <c10/util/Exception.h>

#include <CLI/CLI.hpp>
#include <new>
#include <string>

#include "cli/environment.h"
#include "command_line/exit_code.h"
#include "command_line/options.h"
#include "decode_record/base/error.h"
#include "probe/commands/bench_command.h"
#include "probe/commands/capture_command.h"
#include "probe/commands/check_command.h"
#include "probe/commands/eval_command.h"
#include "probe/commands/frequencies_command.h"
#include "probe/commands/help_command.h"
#include "probe/commands/lens_command.h"
#include "probe/commands/study_command.h"
#include "probe/commands/train_command.h"
#include "probe/commands/verify_command.h"
#include "probe/run/run_failure.h"

namespace {

std::string joined(int argc, char** argv) {
  std::string line;
  for (int i = 0; i < argc; ++i) line += (i == 0 ? "" : " ") + std::string(argv[i]);
  return line;
}

}  // namespace

extern "C" int blockscope_probe_run(int argc, char** argv) {
  CLI::App app{"", "blockscope"};
  app.require_subcommand(1);
  return blockscope::exit_code_of(app, argc, argv, [&] {
    const blockscope::Environment environment = blockscope::read_environment();
    blockscope::add_capture_command(app, environment, joined(argc, argv));
    blockscope::add_check_command(app, environment);
    blockscope::add_eval_command(app, environment);
    blockscope::add_frequencies_command(app, environment);
    blockscope::add_help_command(app);
    blockscope::add_lens_command(app, environment, blockscope::gnuplot_place());
    blockscope::add_train_command(app, environment);
    blockscope::add_bench_command(app, environment);
    blockscope::add_study_command(app, environment, blockscope::gnuplot_place());
    blockscope::add_verify_command(app, environment, blockscope::gnuplot_place());
    try {
      blockscope::parse_arguments(app, argc, argv);
    } catch (const c10::Error& error) {
      throw blockscope::Error(blockscope::failure_of(error).message());
    } catch (const std::bad_alloc&) {
      throw blockscope::Error(blockscope::host_memory_failure().message());
    }
  });
}
