#include "analysis/pass/layer_queue.h"

#include <algorithm>
#include <utility>

namespace blockscope {
namespace {

constexpr std::size_t kMaxTasks = 4096;  // of small arrays
// Bytes that queued tasks will read. Enough for the workers while more places are looked up. With
// many more, the reading thread, which counts the progress, would run too far ahead.
constexpr std::size_t kMaxLateBytes = std::size_t{64} << 20U;
// Bytes that a worker takes from a layer with one lock: few, so that room is free soon.
constexpr std::size_t kTasksAtOnce = 64;
constexpr std::size_t kBytesAtOnce = std::size_t{512} << 10U;

std::size_t bytes_held(const LayerQueue::Run& run) {
  std::size_t bytes = 0;
  for (const StepTask& task : run) bytes += task.bytes;
  return bytes;
}

}  // namespace

LayerQueue::LayerQueue(std::size_t layers, std::size_t threads, std::size_t max_bytes,
                       std::function<void(const StepTask&)> run)
    : run_(std::move(run)), max_bytes_(max_bytes), layers_(layers) {
  for (std::size_t i = 1; i < threads; ++i) {
    workers_.emplace_back([this] { work(); });
  }
}

LayerQueue::~LayerQueue() {
  {
    const std::scoped_lock lock(mutex_);
    stop_ = true;
  }
  ready_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

template <typename Done>
void LayerQueue::help_until(std::unique_lock<std::mutex>& lock, Done done) {
  while (!error_ && !done()) {
    if (ready_layers_.empty()) {
      room_.wait(lock);
    } else {
      run_some(lock);
    }
  }
  if (error_) std::rethrow_exception(error_);
}

void LayerQueue::push(std::vector<Run> runs) {
  std::size_t bytes = 0;
  for (const Run& run : runs) bytes += bytes_held(run);
  std::unique_lock lock(mutex_);
  help_until(lock, [&] {
    return tasks_ == 0 ||
           (bytes_ + bytes <= max_bytes_ && tasks_ < kMaxTasks && late_bytes_ < kMaxLateBytes);
  });
  bytes_ += bytes;
  for (Run& run : runs) {
    if (run.empty()) continue;
    const std::size_t index = run.front().layer;
    Layer& layer = layers_.at(index);
    tasks_ += run.size();
    for (const StepTask& task : run) late_bytes_ += task.late_bytes;
    layer.runs.push_back(std::move(run));
    if (layer.busy) continue;
    layer.busy = true;
    ready_layers_.push_back(index);
  }
  const bool many = ready_layers_.size() > 1;
  lock.unlock();
  if (many) {
    ready_.notify_all();
  } else {
    ready_.notify_one();
  }
}

void LayerQueue::drain() {
  std::unique_lock lock(mutex_);
  help_until(lock, [&] { return tasks_ == 0; });
}

void LayerQueue::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    ready_.wait(lock, [&] { return stop_ || !ready_layers_.empty(); });
    if (stop_) return;
    run_some(lock);
  }
}

void LayerQueue::run_some(std::unique_lock<std::mutex>& lock) {
  const std::size_t index = ready_layers_.front();
  ready_layers_.pop_front();
  Layer& layer = layers_[index];
  std::vector<Run> batch;
  std::size_t count = 0;
  std::size_t bytes = 0;
  std::size_t late_bytes = 0;
  while (!layer.runs.empty() && count < kTasksAtOnce && bytes + late_bytes < kBytesAtOnce) {
    batch.push_back(std::move(layer.runs.front()));
    layer.runs.pop_front();
    count += batch.back().size();
    bytes += bytes_held(batch.back());
    for (const StepTask& task : batch.back()) late_bytes += task.late_bytes;
  }
  lock.unlock();
  std::exception_ptr error;
  try {
    for (Run& run : batch) {
      for (StepTask& task : run) {
        run_(task);
        task = StepTask();  // release its arrays for the next task
      }
    }
  } catch (...) {
    error = std::current_exception();
  }
  batch.clear();  // return the buffers before the reader looks for room
  lock.lock();
  if (error && !error_) error_ = error;
  bytes_ -= bytes;
  late_bytes_ -= late_bytes;
  tasks_ -= count;
  if (error_) stop_ = true;
  if (layer.runs.empty()) {
    layer.busy = false;
  } else {
    ready_layers_.push_back(index);
    ready_.notify_one();
  }
  room_.notify_all();
}

}  // namespace blockscope
