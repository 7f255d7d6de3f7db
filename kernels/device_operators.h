// The operators of ops.h on a device other than the CPU. ops.h's functions look at the device of
// their first tensor and go to the kernels of its queue, which the device's library sets when it is
// loaded: libblockscope_kernels_cuda.so for CUDA. Without it they are chains of tensor operators
// (chain_operators.h). Who stays on the CPU loads nothing of either.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceGuard.h>

#include <string>

#include "kernels/chain_operators.h"
#include "kernels/device_kernels.h"

namespace blockscope {

void set_cuda_queue(const DeviceQueue& queue);

// Why the kernels of CUDA's queue can't run on the current device; empty: they can, or there are
// none.
std::string missing_cuda_code();

// A tensor's device, which is current while this lives. False where `tensor` is undefined or on the
// CPU.
class DeviceScope {
 public:
  explicit DeviceScope(const at::Tensor& tensor);
  explicit operator bool() const { return on_device_; }
  bool has_kernels() const { return queue_ != nullptr; }
  const DeviceQueue& queue() const { return *queue_; }  // where it has kernels

 private:
  bool on_device_ = false;
  const DeviceQueue* queue_ = nullptr;
  c10::OptionalDeviceGuard guard_;
};

}  // namespace blockscope
