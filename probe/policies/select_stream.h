// A second stream that chooses sets while the first goes on with the layer: MAGE's SELECT stream
// (algorithm 1) on a device. The host waits for neither.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <functional>
#include <optional>
#include <vector>

namespace blockscope {

class SelectStream {
 public:
  /// Calls `task`. What it launches runs behind all that the caller's stream holds, beside what
  /// that one is given next. `reads`: tensors of one device, not none, that it reads; it returns
  /// those that it made.
  void submit(const std::vector<at::Tensor>& reads,
              const std::function<std::vector<at::Tensor>()>& task);

  /// What the caller launches from now on finds what the tasks made.
  void wait();

 private:
  struct Beside {
    c10::Stream stream;
    c10::Event before, after;  // of the caller's stream, of this one
  };
  std::optional<Beside> beside_;  // from the first task on
  std::vector<at::Tensor> made_;  // that nobody waited for
};

}  // namespace blockscope
