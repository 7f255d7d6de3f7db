// Reads the arrays whose places the reading thread has looked up, in the thread that computes with
// them: an array is still in that core's cache then, and threads read side by side. Internal to
// analysis.
#pragma once

#include <atomic>
#include <cstddef>
#include <deque>
#include <mutex>
#include <vector>

#include "analysis/pass/step_values.h"

namespace blockscope {

/// Thread-safe.
class LateReader {
 public:
  explicit LateReader(BufferPool& pool) : pool_(pool) {}

  /// Late arrays among these will be read, in the order of the calls or nearly so.
  void expect(const std::vector<OwnedView>& values);
  /// Reads the late ones. As soon as one had to come from the disk, the system is asked for those
  /// that follow. Throws as LocatedValues::read.
  void read(const std::vector<OwnedView>& values);

 private:
  void read(LateArray& array);
  /// What to ask for now that an array of so many bytes has its turn.
  std::vector<LocatedValues> next(std::size_t bytes);

  BufferPool& pool_;
  std::atomic<bool> from_disk_ = false;
  std::mutex mutex_;
  std::deque<LocatedValues> expected_;  // that nobody has asked the system for
  std::size_t bytes_ahead_ = 0;         // asked for and not read
};

}  // namespace blockscope
