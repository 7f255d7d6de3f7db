// A second thread, which chooses sets while the first thread continues the layer: MAGE's SELECT
// stream (algorithm 1) on a CPU. Operators that a task calls run on this thread alone.
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

  /// Runs `task` after all earlier tasks. The thread starts with the first task.
  void submit(std::function<void()> task);

  /// Returns when every task has run. Throws what the first failed task threw.
  void wait();

  /// Nanoseconds that the tasks took, and that callers waited for them. Call them only while no
  /// task is running.
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
