// Copies to the host that nobody has to wait for alone.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <optional>
#include <vector>

namespace blockscope {

/// Tensors of one device on their way to the host. Where the host waits for something behind them
/// anyway, asking for them after that is free.
class HostCopies {
 public:
  HostCopies() = default;  // of nothing
  /// Undefined tensors, and those of the host, stay.
  explicit HostCopies(std::vector<at::Tensor> tensors);

  /// Waits for them, if they have not arrived.
  const std::vector<at::Tensor>& wait();

 private:
  struct Copied {
    c10::Stream stream;
    c10::Event event;
  };

  std::vector<at::Tensor> tensors_;
  std::optional<Copied> copied_;  // none: nothing is on its way
};

}  // namespace blockscope
