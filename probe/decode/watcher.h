// The observer of a run, and times that leave its own work out of a pass.
#pragma once

#include <cstdint>

#include "probe/decode/decode_observer.h"
#include "probe/model/stopwatch.h"

namespace blockscope {

/// The observer of a run, or none, and the time that it took so far.
class Watcher {
 public:
  explicit Watcher(DecodeObserver* observer) : observer_(observer) {}
  Watcher(const Watcher&) = delete;
  Watcher& operator=(const Watcher&) = delete;

  /// May be null.
  const DecodeObserver* observer() const { return observer_; }
  int64_t elapsed_ns() const { return elapsed_ns_; }

  /// Calls `show` with the observer, if there is one.
  template <class Show>
  void show(const Show& show) {
    if (observer_ == nullptr) return;
    const Stopwatch watch(elapsed_ns_);
    show(*observer_);
  }

 private:
  DecodeObserver* observer_;
  int64_t elapsed_ns_ = 0;
};

/// Adds the wall time of a scope to a counter, without the observer's time in the scope.
class UnwatchedStopwatch {
 public:
  UnwatchedStopwatch(int64_t& total_ns, const Watcher& watcher)
      : total_ns_(total_ns), watcher_(watcher), watched_before_(watcher.elapsed_ns()) {}
  ~UnwatchedStopwatch() { total_ns_ -= watcher_.elapsed_ns() - watched_before_; }
  UnwatchedStopwatch(const UnwatchedStopwatch&) = delete;
  UnwatchedStopwatch& operator=(const UnwatchedStopwatch&) = delete;

 private:
  int64_t& total_ns_;
  const Watcher& watcher_;
  const int64_t watched_before_;
  const Stopwatch watch_{total_ns_};
};

}  // namespace blockscope
