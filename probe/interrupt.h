// SIGINT, SIGTERM and SIGUSR1 (Slurm's warning before the time limit) ask a run to stop after the
// current step; a second SIGINT ends the process at once.
#pragma once

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
};

}  // namespace blockscope
