// A program that runs commands inside its own process, such as Python. It receives what a command
// prints and shows the progress. It also decides when a command stops, because the signals are its
// own.
#pragma once

#include <functional>
#include <string>

namespace blockscope {

struct CommandHost {
  std::function<void(const std::string&)> say;   ///< results: text for the standard output
  std::function<void(const std::string&)> note;  ///< advice: text for the standard error
  std::function<void(double done, const std::string& text)> progress;  ///< done in [0, 1]
  std::function<bool()> stops;  ///< whether to stop; once true, it stays true
};

/// The host of the running command; null: the process is the command's own.
CommandHost* command_host();

/// Makes `host` the host of the command that runs while this lives. One at a time.
class HostScope {
 public:
  explicit HostScope(CommandHost& host);
  ~HostScope();
  HostScope(const HostScope&) = delete;
  HostScope& operator=(const HostScope&) = delete;
};

}  // namespace blockscope
