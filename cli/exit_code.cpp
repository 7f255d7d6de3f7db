#include "cli/exit_code.h"

#include <fmt/format.h>

#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <cstdio>
#include <string>

#include "decode_record/error.h"
#include "probe/interrupt.h"

namespace blockscope {
namespace {

int report(const std::string& message, int exit_code) {
  fmt::print(stderr, "blockscope: error: {}\n", message);
  return exit_code;
}

}  // namespace

int exit_code_of(CLI::App& app, int argc, char** argv, const std::function<void()>& run) {
  try {
    run();
    return 0;
  } catch (const CLI::RuntimeError& error) {  // carries a command's own exit code
    return error.get_exit_code();
  } catch (const CLI::Success& request) {  // --help, --version
    return app.exit(request);
  } catch (const CLI::ParseError& error) {
    const std::string command = argc > 1 && argv[1][0] != '-' ? std::string(argv[1]) + " " : "";
    return report(fmt::format("{}. HINT: blockscope {}--help", error.what(), command), 2);
  } catch (const UsageError& error) {
    return report(error.what(), 2);
  } catch (const InterruptedError& error) {
    fmt::print(stderr, "blockscope: stopped by a signal: {}\n", error.what());
    return 128 + InterruptGuard::signal();
  } catch (const std::exception& error) {
    return report(error.what(), 1);
  }
}

}  // namespace blockscope
