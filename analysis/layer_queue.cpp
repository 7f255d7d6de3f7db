#include "analysis/layer_queue.h"

#include <algorithm>
#include <utility>

namespace blockscope {
namespace {

constexpr std::size_t kMaxTasks = 4096;   // of small arrays
constexpr std::size_t kTasksAtOnce = 64;  // what a worker takes of a layer with one lock

}  // namespace

LayerQueue::LayerQueue(std::size_t layers, std::size_t threads, std::size_t max_bytes,
                       std::function<void(const StepTask&)> run)
    : run_(std::move(run)), max_bytes_(max_bytes), layers_(layers) {
  for (std::size_t i = 0; i < std::max<std::size_t>(threads, 1); ++i) {
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

void LayerQueue::rethrow() const {
  if (error_) std::rethrow_exception(error_);
}

void LayerQueue::push(StepTask task) {
  std::unique_lock lock(mutex_);
  room_.wait(lock, [&] {
    return error_ || tasks_ == 0 || (bytes_ + task.bytes <= max_bytes_ && tasks_ < kMaxTasks);
  });
  rethrow();
  bytes_ += task.bytes;
  ++tasks_;
  const std::size_t index = task.layer;
  Layer& layer = layers_.at(index);
  layer.tasks.push_back(std::move(task));
  if (layer.busy) return;
  layer.busy = true;
  ready_layers_.push_back(index);
  lock.unlock();
  ready_.notify_one();
}

void LayerQueue::drain() {
  std::unique_lock lock(mutex_);
  room_.wait(lock, [&] { return error_ || tasks_ == 0; });
  rethrow();
}

void LayerQueue::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    ready_.wait(lock, [&] { return stop_ || !ready_layers_.empty(); });
    if (stop_) return;
    const std::size_t index = ready_layers_.front();
    ready_layers_.pop_front();
    Layer& layer = layers_[index];
    const std::size_t count = std::min(layer.tasks.size(), kTasksAtOnce);
    const auto end = layer.tasks.begin() + static_cast<std::ptrdiff_t>(count);
    std::vector<StepTask> batch(std::make_move_iterator(layer.tasks.begin()),
                                std::make_move_iterator(end));
    layer.tasks.erase(layer.tasks.begin(), end);
    lock.unlock();
    std::size_t bytes = 0;
    std::exception_ptr error;
    try {
      for (const StepTask& task : batch) {
        bytes += task.bytes;
        run_(task);
      }
    } catch (...) {
      error = std::current_exception();
    }
    batch.clear();  // buffers go back before the reader looks for room
    lock.lock();
    if (error && !error_) error_ = error;
    bytes_ -= bytes;
    tasks_ -= count;
    if (error_) stop_ = true;
    if (layer.tasks.empty()) {
      layer.busy = false;
    } else {
      ready_layers_.push_back(index);
    }
    room_.notify_all();
  }
}

}  // namespace blockscope
