// The operators of ops.h on a device other than the CPU. ops.h's functions look at the device of
// their first tensor and go to the kernels of its queue, which the device's library sets when it is
// loaded: libblockscope_kernels_cuda.so for CUDA. Who stays on the CPU loads nothing of it.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceGuard.h>

#include "kernels/device_kernels.h"

namespace blockscope {

void set_cuda_queue(const DeviceQueue& queue);

// The queue of a tensor's device, which is current while this lives. False where `tensor` is
// undefined or on the CPU. Throws c10::Error, naming the operator, where its device has no kernels.
class DeviceScope {
 public:
  DeviceScope(const char* op, const at::Tensor& tensor);
  explicit operator bool() const { return queue_ != nullptr; }
  const DeviceQueue& queue() const { return *queue_; }

 private:
  const DeviceQueue* queue_ = nullptr;
  c10::OptionalDeviceGuard guard_;
};

}  // namespace blockscope
