// A pass over traces on a terminal: rows and bytes per second, time left; Ctrl-C stops it, while
// an InterruptGuard lives.
#pragma once

#include <chrono>
#include <functional>

#include "probe/interrupt.h"
#include "probe/progress.h"

namespace blockscope {

class PassProgress {
 public:
  /// `row_bytes`: what a row costs to read. Shows only on a terminal, and nothing when `quiet`.
  PassProgress(bool quiet, std::size_t row_bytes);

  /// For PassOptions::progress: false once a signal has arrived.
  std::function<bool(std::int64_t done, std::int64_t total)> callback();
  /// Removes the bar, so that results start on an empty line.
  void finish() { bar_.clear(); }
  /// Exit code of a run that a signal ended, as shells count it: 130 for Ctrl-C.
  static int exit_code() { return 128 + InterruptGuard::signal(); }

 private:
  bool update(std::int64_t done, std::int64_t total);
  Progress bar_;
  double row_bytes_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

}  // namespace blockscope
