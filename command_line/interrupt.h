// SIGINT, SIGTERM, SIGHUP (the terminal is gone; ignored under nohup) and SIGUSR1 (Slurm's warning
// before the time limit) ask a run to stop after the current step; a second SIGINT ends the process
// at once.
#pragma once

#include <string>

namespace blockscope {

/// Installs the handlers for as long as it lives.
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
};

}  // namespace blockscope
