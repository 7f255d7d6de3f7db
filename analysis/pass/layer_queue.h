// A queue of tasks for the workers. Tasks of one layer run one at a time, in the order of push();
// different layers run at the same time. The size in bytes is limited: a slow metric slows the
// reader, and memory does not grow. Internal to analysis.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "analysis/pass/step_values.h"

namespace blockscope {

class LayerQueue {
 public:
  /// threads - 1 workers call `run`. The pushing thread also calls it instead of waiting, because a
  /// busy machine wakes threads late.
  LayerQueue(std::size_t layers, std::size_t threads, std::size_t max_bytes,
             std::function<void(const StepTask&)> run);
  LayerQueue(const LayerQueue&) = delete;
  LayerQueue& operator=(const LayerQueue&) = delete;
  /// Drops the queued tasks and waits for the workers.
  ~LayerQueue();

  /// Tasks of one layer for one thread, one after the other.
  using Run = std::vector<StepTask>;
  /// Waits for room. Throws what a worker threw. Many runs in one call wake a worker only once.
  void push(std::vector<Run> runs);
  /// Waits until all pushed tasks have run. Throws what a worker threw.
  void drain();

 private:
  struct Layer {
    std::deque<Run> runs;
    bool busy = false;  // queued for a worker or being run
  };

  void work();
  /// Takes some runs of the first ready layer and runs them. Call it with the mutex held; the mutex
  /// is released while they run. A layer must be ready.
  void run_some(std::unique_lock<std::mutex>& lock);
  /// Runs tasks until `done`. Throws what a task threw. Call it with the mutex held.
  template <typename Done>
  void help_until(std::unique_lock<std::mutex>& lock, Done done);

  std::function<void(const StepTask&)> run_;
  std::size_t max_bytes_;
  std::mutex mutex_;
  std::condition_variable ready_;  // for workers
  std::condition_variable room_;   // for the reader
  std::vector<Layer> layers_;
  std::deque<std::size_t> ready_layers_;
  std::size_t bytes_ = 0;  // of tasks that have not finished
  std::size_t late_bytes_ = 0;
  std::size_t tasks_ = 0;
  std::exception_ptr error_;
  bool stop_ = false;
  std::vector<std::thread> workers_;
};

}  // namespace blockscope
