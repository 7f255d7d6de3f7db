// Progress of a pass over traces: rows and bytes per second, time left. While an InterruptGuard
// lives, Ctrl-C stops the pass.
#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "command_line/interrupt.h"
#include "command_line/progress.h"

namespace blockscope {

class PassProgress {
 public:
  /// `row_bytes`: bytes to read per row; 0: unknown. Shows progress only on a terminal, and nothing
  /// if `quiet`.
  PassProgress(bool quiet, std::size_t row_bytes);

  /// For PassOptions::progress: throws InterruptedError once a signal has arrived.
  std::function<bool(std::int64_t done, std::int64_t total)> callback();
  /// Removes the bar, so that results start on an empty line.
  void finish() { bar_.clear(); }
  /// Shows a count of something else than rows: "drawing: 3 of 12 figures".
  void show(std::size_t done, std::size_t total, const std::string& text);

 private:
  bool update(std::int64_t done, std::int64_t total);
  Progress bar_;
  double row_bytes_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

}  // namespace blockscope
