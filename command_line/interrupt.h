// SIGINT, SIGTERM, SIGHUP (the terminal is gone; ignored under nohup) and SIGUSR1 (Slurm's warning
// before the time limit) end a command. It prints a line and exits with 128 + the signal number.
// Before the command begins to write, a signal ends it at once. Later, a signal asks it to stop
// after the current step, and a second SIGINT ends the process at once.
#pragma once

#include <array>
#include <string>

namespace blockscope {

/// Called first in main. Until a command has an InterruptGuard, no open file needs to be removed,
/// so a signal prints its line and ends the process.
void end_on_signals();

/// While it lives, signals are only noted. A command makes it before its first output.
class InterruptGuard {
 public:
  InterruptGuard();
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

  /// The signal that arrived; 0: none. SIGINT if the command's host wants it to stop.
  static int signal();
  /// Throws InterruptedError once a signal has arrived. `outcome` says what became of the work.
  static void check(const std::string& outcome = "nothing was written");

 private:
  bool hosted_;                         // by a program whose signals are its own (host.h)
  std::array<bool, 4> ended_before_{};  // by signal: whether end_on_signals() had been called
};

}  // namespace blockscope
