#include "probe/model/device.h"

#include <ATen/ATen.h>

#include "kernels/cuda/device_operators.h"
#include "probe/model/host_copies.h"

namespace blockscope {

at::Tensor on_device(const at::Tensor& host, at::Device device) { return copied_to(host, device); }

at::Tensor kept_on(const at::Tensor& host, at::Device device) { return kept_copy(host, device); }

void copy_over(const at::Tensor& host, const at::Tensor& there) {
  there.copy_(host.pin_memory(), /*non_blocking=*/true);
}

at::Tensor index_on(const std::vector<int64_t>& index, at::Device device) {
  return on_device(at::tensor(index, at::kLong), device);
}

at::Tensor on_host(const at::Tensor& tensor) {
  return !tensor.defined() || tensor.is_cpu() ? tensor : tensor.to(at::kCPU);
}

std::vector<at::Tensor> on_host(const std::vector<at::Tensor>& tensors) {
  return HostCopies(tensors).wait();
}

}  // namespace blockscope
