#include "probe/policies/select_worker.h"

#include <c10/core/InferenceMode.h>

#include <utility>

#include "kernels/ops.h"
#include "probe/model/stopwatch.h"

namespace blockscope {

SelectWorker::~SelectWorker() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void SelectWorker::submit(std::function<void()> task) {
  {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
  changed_.notify_all();
}

void SelectWorker::wait() {
  std::unique_lock lock(mutex_);
  int64_t waited = 0;
  {
    const Stopwatch watch(waited);
    changed_.wait(lock, [this] { return tasks_.empty(); });
  }
  waited_ns_ += waited;
  if (const std::exception_ptr failure = std::exchange(failure_, nullptr)) {
    std::rethrow_exception(failure);
  }
}

void SelectWorker::run() {
  const c10::InferenceMode inference;
  const SerialScope serial;
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stopping_ || !tasks_.empty(); });
    if (tasks_.empty()) return;
    const std::function<void()> task = tasks_.front();
    const bool skip = failure_ != nullptr;
    lock.unlock();
    std::exception_ptr failure;
    int64_t busy = 0;
    try {
      const Stopwatch watch(busy);
      if (!skip) task();
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    busy_ns_ += busy;
    if (failure != nullptr) failure_ = failure;
    tasks_.pop_front();
    changed_.notify_all();
  }
}

}  // namespace blockscope
