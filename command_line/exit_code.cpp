#include "command_line/exit_code.h"

#include <fmt/format.h>

#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <csignal>
#include <string>
#include <string_view>
#include <system_error>

#include "command_line/interrupt.h"
#include "command_line/options.h"
#include "command_line/standard_streams.h"
#include "decode_record/base/error.h"

namespace blockscope {
namespace {

int report(const std::string& message, int exit_code) {
  note("blockscope: error: {}\n", message);
  return exit_code;
}

/// `problem`: the system's message, if an exception carried it.
int finish_output(int exit_code, const std::string& problem = "") {
  const PrintedState printed = flush_standard_output();
  if (printed.whole || exit_code > 1) return exit_code;
  if (printed.nobody_reads) return 128 + SIGPIPE;
  if (exit_code == 1 && problem.empty()) return exit_code;  // something else went wrong first
  return report(fmt::format("standard output: what was printed could not be written: {}. HINT: "
                            "output files are whole; only this text is lost",
                            problem.empty() ? printed.problem : problem),
                1);
}

int end_of(CLI::App& app, int argc, char** argv, const std::function<void()>& run) {
  try {
    refuse_empty_values(argc, argv);
    run();
    return finish_output(0);
  } catch (const CLI::RuntimeError& error) {  // carries a command's own exit code
    return finish_output(error.get_exit_code());
  } catch (const CLI::Success& request) {  // --help, --version
    return finish_output(app.exit(request));
  } catch (const CLI::ParseError& error) {
    const std::string command = argc > 1 && argv[1][0] != '-' ? std::string(argv[1]) + " " : "";
    return report(fmt::format("{}. HINT: blockscope {}--help", words_of(error), command), 2);
  } catch (const UsageError& error) {
    return report(error.what(), 2);
  } catch (const InterruptedError& error) {
    note("blockscope: stopped by a signal: {}\n", error.what());
    return 128 + InterruptGuard::signal();
  } catch (const std::system_error& error) {
    if (!flush_standard_output().whole) return finish_output(1, error.code().message());
    return report(error.what(), 1);
  } catch (const std::exception& error) {
    return report(error.what(), 1);
  }
}

}  // namespace

std::string words_of(const CLI::ParseError& error) {
  constexpr std::string_view kTooMany = ": At Most 1 required but received ";
  const std::string text = error.what();
  const std::size_t at = text.find(kTooMany);
  if (at == std::string::npos) return text;
  return fmt::format("{}: expected once, got it {} times", text.substr(0, at),
                     text.substr(at + kTooMany.size()));
}

int exit_code_of(CLI::App& app, int argc, char** argv, const std::function<void()>& run) {
  try {
    return end_of(app, argc, argv, run);
  } catch (const std::exception& error) {  // printing the help failed
    return finish_output(1, error.what());
  }
}

}  // namespace blockscope
