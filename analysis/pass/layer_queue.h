// Tasks of the layers on their way to the workers: tasks of one layer run in the order they were
// pushed, one at a time; layers run side by side. Bounded in bytes, so that a slow metric slows the
// reader and memory stays flat. Internal to analysis.
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
  /// `run` is called from threads - 1 workers and, whenever the thread that pushes would have to
  /// wait, from that one: a busy machine wakes nobody up soon.
  LayerQueue(std::size_t layers, std::size_t threads, std::size_t max_bytes,
             std::function<void(const StepTask&)> run);
  LayerQueue(const LayerQueue&) = delete;
  LayerQueue& operator=(const LayerQueue&) = delete;
  /// Drops what is queued and waits for the workers.
  ~LayerQueue();

  /// Tasks of one layer that one thread shall run, one after the other.
  using Run = std::vector<StepTask>;
  /// Waits for room. Throws what a worker threw. Many at a time wake a worker once.
  void push(std::vector<Run> runs);
  /// Waits until everything pushed has run. Throws what a worker threw.
  void drain();

 private:
  struct Layer {
    std::deque<Run> runs;
    bool busy = false;  // waits for a worker or is with one
  };

  void work();
  /// Takes some runs of the layer that is first in turn and runs them. With the mutex held, which
  /// is free meanwhile; some layer must be ready.
  void run_some(std::unique_lock<std::mutex>& lock);
  /// Runs tasks until `done`; throws what a task threw. With the mutex held.
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
