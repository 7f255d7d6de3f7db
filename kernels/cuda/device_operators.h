// The operators of ops.h on a device other than the CPU. ops.h's functions look at the device of
// their first tensor and go to the kernels of its queue, which the device's library sets when it is
// loaded: libblockscope_kernels_cuda.so for CUDA. Without it they are made of torch operators
// (fallback_operators.h). Who stays on the CPU loads nothing of either.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceGuard.h>

#include <functional>
#include <memory>
#include <string>

#include "kernels/cuda/device_kernels.h"
#include "kernels/torch/fallback_operators.h"

namespace blockscope {

void set_cuda_queue(const DeviceQueue& queue);

// Why the kernels of CUDA's queue can't run on the current device; empty: they can, or there are
// none.
std::string missing_cuda_code();

// Whether work of this device can be kept as graphs (device_graph.h).
bool has_graphs(at::Device device);
// As CaptureGraph says, on that device; it must have graphs. A copy from the host through
// copied_to() is refused: its memory is given out again before the graph runs.
std::unique_ptr<DeviceGraph> capture_graph(at::Device device, const std::function<void()>& work);
// Whether this thread is within such work.
bool captures_graph();

// A tensor of the host on a device, without waiting for it: from pageable memory the copy would.
// What was pinned for it is given out again only when the copy is done.
at::Tensor copied_to(const at::Tensor& host, at::Device device);

// A tensor's device, which is current while this lives. False where `tensor` is undefined or on the
// CPU.
class DeviceScope {
 public:
  explicit DeviceScope(const at::Tensor& tensor);
  explicit operator bool() const { return on_device_; }
  bool has_kernels() const { return queue_ != nullptr; }
  const DeviceQueue& queue() const { return *queue_; }  // where it has kernels

  // An operator by the device's kernels, or by torch's operators where it has none.
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
// makes results and workspace, and gives the queue calls that only need to be handed to kernels.
// Arguments, results and errors are those of ops.h and row_ops.h; lengths, masks and `dense` stay
// on the CPU; split_attention keeps no weights.
#define BLOCKSCOPE_ON_QUEUE(name) OnQueue<decltype(name)>::type name##_on;
BLOCKSCOPE_OPERATORS(BLOCKSCOPE_ON_QUEUE)
BLOCKSCOPE_ROW_OPERATORS(BLOCKSCOPE_ON_QUEUE)
#undef BLOCKSCOPE_ON_QUEUE
TopKSets topk_sets_on(const DeviceQueue& queue, const at::Tensor& q, const at::Tensor& k_ext,
                      const at::Tensor& ext_len, const at::Tensor& lse, int64_t k, double scale,
                      bool with_tokens);

}  // namespace blockscope
