#include "kernels/device_operators.h"

namespace blockscope {
namespace {

// Filled while a library is loaded, before any call on its device.
DeviceQueue& cuda_queue() {
  static DeviceQueue queue;
  return queue;
}

}  // namespace

void set_cuda_queue(const DeviceQueue& queue) { cuda_queue() = queue; }

std::string missing_cuda_code() {
  return cuda_queue().missing_code == nullptr ? "" : cuda_queue().missing_code();
}

DeviceScope::DeviceScope(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.device().is_cpu()) return;
  on_device_ = true;
  guard_.reset_device(tensor.device());
  if (tensor.device().is_cuda() && cuda_queue().enqueue) queue_ = &cuda_queue();
}

}  // namespace blockscope
