// SIGINT, SIGTERM, SIGHUP (the terminal is gone; ignored under nohup) and SIGUSR1 (Slurm's warning
// before the time limit) end a command with 128 + the signal and a line that says so. Before it
// begins to write they end it at once; from then on they ask it to stop after the current step, and
// a second SIGINT ends the process at once.
#pragma once

#include <array>
#include <string>

namespace blockscope {

/// First thing in main: until a command has an InterruptGuard, nothing is open that would have to
/// be removed, so a signal is told and ends the process.
void end_on_signals();

/// Notes signals instead, for as long as it lives. A command makes it before its first output.
class InterruptGuard {
 public:
  InterruptGuard();
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

  /// The signal that arrived, 0: none.
  static int signal();
  /// Throws InterruptedError, with what became of the work, once a signal has arrived.
  static void check(const std::string& outcome = "nothing was written");

 private:
  std::array<bool, 4> ended_before_{};  // by signal: whether end_on_signals() had been called
};

}  // namespace blockscope
