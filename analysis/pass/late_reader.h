// Reads late arrays in the thread that computes with them; the reading thread has only found their
// places. The array is then in that core's cache, and several threads read at the same time.
// Internal to analysis.
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

  /// Announces late arrays that will be read, roughly in the order of the calls.
  void expect(const std::vector<OwnedView>& values);
  /// Reads the late ones. After the first one that comes from the disk, it also asks the system to
  /// load the next ones. Throws like LocatedValues::read.
  void read(const std::vector<OwnedView>& values);

 private:
  void read(LateArray& array);
  /// The arrays to request from the system when an array of so many bytes is read.
  std::vector<LocatedValues> next(std::size_t bytes);

  BufferPool& pool_;
  std::atomic<bool> from_disk_ = false;
  std::mutex mutex_;
  std::deque<LocatedValues> expected_;  // not yet requested from the system
  std::size_t bytes_ahead_ = 0;         // requested but not yet read
};

}  // namespace blockscope
