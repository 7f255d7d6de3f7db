// A second thread that chooses sets while the first goes on with the layer: MAGE's SELECT stream
// (algorithm 1) on a CPU. Operators called on it stay on it.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

namespace blockscope {

class SelectWorker {
 public:
  SelectWorker() = default;
  SelectWorker(const SelectWorker&) = delete;
  SelectWorker& operator=(const SelectWorker&) = delete;
  ~SelectWorker();

  /// Runs `task` after those submitted before. The thread starts with the first task.
  void submit(std::function<void()> task);

  /// Returns when every task has run; throws what the first failed one threw.
  void wait();

  /// Nanoseconds that the tasks took, and that callers waited for them; when no task is running.
  int64_t busy_ns() const { return busy_ns_; }
  int64_t waited_ns() const { return waited_ns_; }

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;  // the first one may be running
  std::exception_ptr failure_;
  bool stopping_ = false;
  int64_t busy_ns_ = 0;
  int64_t waited_ns_ = 0;
  std::thread thread_;
};

}  // namespace blockscope
