#include "probe/model/host_copies.h"

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <utility>

namespace blockscope {

HostCopies::HostCopies(std::vector<at::Tensor> tensors) : tensors_(std::move(tensors)) {
  std::optional<at::Device> device;
  for (at::Tensor& each : tensors_) {
    if (!each.defined() || each.is_cpu()) continue;
    device = each.device();
    const at::Tensor source = each;
    each = at::empty(source.sizes(), source.options().device(at::kCPU).pinned_memory(true));
    each.copy_(source, /*non_blocking=*/true);
  }
  if (!device) return;
  copied_.emplace(device->type());
  copied_->record(c10::impl::VirtualGuardImpl(device->type()).getStream(*device));
}

const std::vector<at::Tensor>& HostCopies::wait() {
  if (copied_) copied_->synchronize();
  copied_.reset();
  return tensors_;
}

}  // namespace blockscope
