// The operators of ops.h on a device other than the CPU. The functions of ops.h use the kernels of
// the queue of their first tensor's device. The device's library sets the queue when it is loaded;
// for CUDA, it is libblockscope_kernels_cuda.so. Without this library, torch operators replace the
// kernels (fallback_operators.h). Work on the CPU loads neither.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceGuard.h>

#include <functional>
#include <memory>
#include <string>

#include "kernels/cuda/device_kernels.h"
#include "kernels/step_statistics.h"
#include "kernels/torch/fallback_operators.h"

namespace blockscope {

void set_cuda_queue(const DeviceQueue& queue);

// Why the kernels of CUDA's queue can't run on the current device; empty if they can, or if there
// is no queue.
std::string missing_cuda_code();

// How split_attention may read a prefix on a GPU in this process, for a trace; empty: with our
// kernels alone.
std::string cuda_prefix_attention();

// The device's grouped product for this type, which waits for nothing; null: it has none.
GroupedProduct grouped_product_of(at::Device device, at::ScalarType type);

// Whether this device supports graphs (device_graph.h).
bool has_graphs(at::Device device);
// Captures a graph (CaptureGraph) on a device that supports graphs. Refused while another graph is
// alive. A copy from the host through copied_to() is refused, because its memory is reused before
// the graph runs.
std::unique_ptr<DeviceGraph> capture_graph(at::Device device, const std::function<void()>& work);
// Whether this thread is capturing a graph.
bool captures_graph();

// Copies a tensor of the host to a device without waiting. It pins memory for the copy, because a
// copy from pageable memory waits. The pinned memory is reused only after the copy is done.
at::Tensor copied_to(const at::Tensor& host, at::Device device);
// The same for small values that many calls need, such as the index of a block's rows. This thread
// keeps its last copies and gives them to work of the same stream, so nobody may write to them. A
// graph whose work has run before takes the copies of that run, and keeps them.
at::Tensor kept_copy(const at::Tensor& host, at::Device device);

// Makes a tensor's device current while this object lives. False if `tensor` is undefined or on the
// CPU.
class DeviceScope {
 public:
  explicit DeviceScope(const at::Tensor& tensor);
  explicit operator bool() const { return on_device_; }
  bool has_kernels() const { return queue_ != nullptr; }
  const DeviceQueue& queue() const { return *queue_; }  // only if has_kernels()

  // Runs an operator with the device's kernels, or with torch operators if it has none.
  template <class Kernels, class Fallback, class... Arguments>
  auto run(const Kernels& kernels, const Fallback& fallback, const Arguments&... arguments) const {
    return has_kernels() ? kernels(queue(), arguments...) : fallback(arguments...);
  }

 private:
  bool on_device_ = false;
  const DeviceQueue* queue_ = nullptr;
  c10::OptionalDeviceGuard guard_;
};

template <class Operator>
struct OnQueue;
template <class Result, class... Arguments>
struct OnQueue<Result(Arguments...)> {
  using type = Result(const DeviceQueue& queue, Arguments... arguments);
};

// <name>_on(queue, ...): an operator on the device of its first tensor. It checks its arguments,
// allocates results and workspace, and puts complete kernel calls into the queue. Arguments,
// results and errors are those of ops.h and row_ops.h. Lengths, masks and `dense` stay on the CPU.
// split_attention keeps no weights.
#define BLOCKSCOPE_ON_QUEUE(name) OnQueue<decltype(name)>::type name##_on;
BLOCKSCOPE_OPERATORS(BLOCKSCOPE_ON_QUEUE)
BLOCKSCOPE_ROW_OPERATORS(BLOCKSCOPE_ON_QUEUE)
#undef BLOCKSCOPE_ON_QUEUE
TopKSets topk_sets_on(const DeviceQueue& queue, const at::Tensor& q, const at::Tensor& k_ext,
                      const at::Tensor& ext_len, const at::Tensor& lse, int64_t k, double scale,
                      bool with_tokens);
LayerStatistics layer_statistics_on(const DeviceQueue& queue, const LayerStep& step,
                                    const HeadShape& shape);
RowGaps row_gaps_on(const DeviceQueue& queue, const at::Tensor& x, int64_t row,
                    const at::Tensor& first);

}  // namespace blockscope
