#include "kernels/device_operators.h"

#include <c10/util/Exception.h>

namespace blockscope {
namespace {

// Filled while a library is loaded, before any call on its device.
DeviceOperators& cuda_operators() {
  static DeviceOperators operators;
  return operators;
}

}  // namespace

void set_cuda_operators(const DeviceOperators& operators) { cuda_operators() = operators; }

const DeviceOperators* operators_of(const char* op, const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.device().is_cpu()) return nullptr;
  const DeviceOperators& operators = cuda_operators();
  TORCH_CHECK(tensor.device().is_cuda() && operators.split_attention != nullptr, op,
              ": no kernels for a tensor on ", tensor.device(),
              tensor.device().is_cuda() ? ". HINT: load libblockscope_kernels_cuda.so first"
                                        : ". HINT: move it with .cpu()");
  return &operators;
}

}  // namespace blockscope
