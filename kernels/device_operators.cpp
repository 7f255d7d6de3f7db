#include "kernels/device_operators.h"

namespace blockscope {
namespace {

// Filled while a library is loaded, before any call on its device.
DeviceOperators& cuda_operators() {
  static DeviceOperators operators;
  return operators;
}

}  // namespace

void set_cuda_operators(const DeviceOperators& operators) { cuda_operators() = operators; }

const DeviceOperators* operators_of(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.device().is_cpu()) return nullptr;
  static const DeviceOperators chains;
  return tensor.device().is_cuda() ? &cuda_operators() : &chains;
}

}  // namespace blockscope
