#include "kernels/device_operators.h"

#include <c10/util/Exception.h>

namespace blockscope {
namespace {

// Filled while a library is loaded, before any call on its device.
DeviceQueue& cuda_queue() {
  static DeviceQueue queue;
  return queue;
}

}  // namespace

void set_cuda_queue(const DeviceQueue& queue) { cuda_queue() = queue; }

DeviceScope::DeviceScope(const char* op, const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.device().is_cpu()) return;
  const DeviceQueue& queue = cuda_queue();
  TORCH_CHECK(tensor.device().is_cuda() && queue.enqueue, op, ": no kernels for a tensor on ",
              tensor.device(),
              tensor.device().is_cuda() ? ". HINT: load libblockscope_kernels_cuda.so first"
                                        : ". HINT: move it with .cpu()");
  guard_.reset_device(tensor.device());
  queue_ = &queue;
}

}  // namespace blockscope
