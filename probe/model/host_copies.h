// Copies from a device to the host that run while the host does other work.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <optional>
#include <vector>

namespace blockscope {

/// Tensors of one device that are being copied to the host. wait() is free once the host has waited
/// for later work of the same stream.
class HostCopies {
 public:
  HostCopies() = default;  // no tensors
  /// Undefined tensors and host tensors stay as they are.
  explicit HostCopies(std::vector<at::Tensor> tensors);

  /// Waits for the copies, if they have not arrived yet.
  const std::vector<at::Tensor>& wait();

 private:
  std::vector<at::Tensor> tensors_;
  std::optional<c10::Event> copied_;  // none: nothing is being copied
};

}  // namespace blockscope
