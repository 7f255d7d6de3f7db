// libblockscope_probe.so: the commands that need LibTorch.
#include "cli/probe_module.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

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

namespace blockscope {
namespace {

std::string joined(int argc, char** argv) {
  std::string line;
  for (int i = 0; i < argc; ++i) line += (i == 0 ? "" : " ") + std::string(argv[i]);
  return line;
}

/// All commands, with the environment of this process.
void add_commands(CLI::App& app, const std::string& description) {
  app.require_subcommand(1);
  const Environment environment = read_environment();
  add_capture_command(app, environment, description);
  add_check_command(app, environment);
  add_eval_command(app, environment);
  add_frequencies_command(app, environment);
  add_help_command(app);
  add_lens_command(app, environment, gnuplot_place());
  add_train_command(app, environment);
  add_bench_command(app, environment);
  add_study_command(app, environment, gnuplot_place());
  add_verify_command(app, environment, gnuplot_place());
  for (CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    add_plugin_option(*command, "policies, strategies and caches");
  }
}

/// Parses and runs. LibTorch's errors become those of the project.
void parse_and_run(
    CLI::App& app, int argc, char** argv, const std::function<void()>& work = [] {}) {
  try {
    parse_arguments(app, argc, argv);
    work();
  } catch (const c10::Error& error) {
    throw Error(failure_of(error).message());
  } catch (const std::bad_alloc&) {
    throw Error(host_memory_failure().message());
  }
}

}  // namespace

void run_reported(CLI::App& app, int argc, char** argv, const std::function<void()>& work) {
  try {
    refuse_empty_values(argc, argv);
    parse_and_run(app, argc, argv, work);
  } catch (const CLI::RuntimeError& error) {
    throw Error(fmt::format("the command ended with exit code {}", error.get_exit_code()));
  } catch (const CLI::ParseError& error) {
    throw UsageError(words_of(error));
  }
}

void run_hosted_command(int argc, char** argv, const std::string& description) {
  CLI::App app{"", "blockscope"};
  add_commands(app, description);
  run_reported(app, argc, argv, [] {});
}

std::vector<HostedOption> hosted_options(const std::string& command) {
  CLI::App app{"", "blockscope"};
  add_commands(app, "");
  const auto named =
      app.get_subcommands([&](const CLI::App* one) { return one->get_name() == command; });
  if (named.empty()) throw UsageError(fmt::format("unknown command '{}'", command));
  std::vector<const CLI::App*> parts{named.front()};
  for (const CLI::App* group : named.front()->get_subcommands([](CLI::App*) { return true; })) {
    parts.push_back(group);
  }
  std::vector<HostedOption> options;
  for (const CLI::App* part : parts) {
    for (const CLI::Option* option : part->get_options()) {
      HostedOption& one = options.emplace_back();
      one.name = option->get_name();
      one.help = option->get_description();
      one.takes_value = option->get_items_expected_max() > 0;
      one.lists = option->get_delimiter() != '\0';
      one.repeats = !one.lists && option->get_items_expected_max() > 1;
      one.initial = option->get_default_str();
    }
  }
  return options;
}

}  // namespace blockscope

extern "C" int blockscope_probe_run(int argc, char** argv) {
  CLI::App app{"", "blockscope"};
  return blockscope::exit_code_of(app, argc, argv, [&] {
    blockscope::add_commands(app, blockscope::joined(argc, argv));
    blockscope::parse_and_run(app, argc, argv);
  });
}
