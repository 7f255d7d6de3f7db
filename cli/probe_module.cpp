// libblockscope_probe.so: the commands that need LibTorch, behind one C entry point.
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <new>
#include <string>

#include "cli/environment.h"
#include "decode_record/error.h"
#include "probe/bench_command.h"
#include "probe/capture_command.h"
#include "probe/check_command.h"
#include "probe/eval_command.h"
#include "probe/train/train_command.h"
#include "probe/verify/verify_command.h"

namespace {

int report(const std::string& message, int exit_code) {
  fmt::print(stderr, "blockscope: error: {}\n", message);
  return exit_code;
}

std::string joined(int argc, char** argv) {
  std::string line;
  for (int i = 0; i < argc; ++i) line += (i == 0 ? "" : " ") + std::string(argv[i]);
  return line;
}

}  // namespace

extern "C" int blockscope_probe_run(int argc, char** argv) {
  CLI::App app{"", "blockscope"};
  app.require_subcommand(1);
  try {
    const blockscope::Environment environment = blockscope::read_environment();
    blockscope::add_capture_command(app, environment, joined(argc, argv));
    blockscope::add_check_command(app, environment);
    blockscope::add_eval_command(app, environment);
    blockscope::add_train_command(app);
    blockscope::add_bench_command(app, environment);
    blockscope::add_verify_command(app, environment, blockscope::gnuplot_place());
    app.parse(argc, argv);
    return 0;
  } catch (const CLI::RuntimeError& error) {
    return error.get_exit_code();
  } catch (const CLI::Success& request) {  // --help
    return app.exit(request);
  } catch (const CLI::ParseError& error) {
    return report(
        fmt::format("{}. HINT: blockscope {} --help", error.what(), argc > 1 ? argv[1] : ""), 2);
  } catch (const blockscope::UsageError& error) {
    return report(error.what(), 2);
  } catch (const c10::Error& error) {
    return report(error.what_without_backtrace(), 1);
  } catch (const std::bad_alloc&) {
    return report("out of memory. HINT: a smaller --batch-size or --gen-length", 1);
  } catch (const std::exception& error) {
    return report(error.what(), 1);
  }
}
