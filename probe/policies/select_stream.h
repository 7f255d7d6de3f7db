// A second stream of a device, which chooses sets while the first stream continues the layer:
// MAGE's SELECT stream (algorithm 1). The host waits for neither.
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
  /// Calls `task`. Its kernels run after all work that the caller's stream already holds, and in
  /// parallel with work that the stream gets later. `reads`: the tensors that the task reads, at
  /// least one, all on one device. The task returns the tensors that it made.
  void submit(const std::vector<at::Tensor>& reads,
              const std::function<std::vector<at::Tensor>()>& task);

  /// Lets the caller's later kernels wait for the results of the tasks.
  void wait();

 private:
  struct Beside {
    c10::Stream stream;
    c10::Event before, after;  // recorded on the caller's stream, on this one
  };
  std::optional<Beside> beside_;  // set from the first task on
  std::vector<at::Tensor> made_;  // results since the last wait()
};

}  // namespace blockscope
