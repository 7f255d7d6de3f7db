// Runs the built `blockscope` binary as a user would and hands back what it printed.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace blockscope::test {

struct CommandResult {
  int exit_code = -1;  // -1 if it died from a signal
  std::string out;     // everything on stdout
  std::string err;     // everything on stderr
  double seconds = 0;  // wall time
};

/// Runs blockscope with `arguments`; `environment` is set on top of this process's own.
CommandResult run_blockscope(const std::vector<std::string>& arguments,
                             const std::map<std::string, std::string>& environment = {});

/// True if `text` is exactly one line "blockscope: error: ...".
bool is_one_error_line(const std::string& text);

}  // namespace blockscope::test
