// Adds the wall time of a scope to a counter.
#pragma once

#include <chrono>
#include <cstdint>

namespace blockscope {

class Stopwatch {
 public:
  explicit Stopwatch(int64_t& total_ns) : total_ns_(total_ns), begin_(Clock::now()) {}
  ~Stopwatch() {
    total_ns_ +=
        std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - begin_).count();
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  using Clock = std::chrono::steady_clock;
  int64_t& total_ns_;
  Clock::time_point begin_;
};

}  // namespace blockscope
