// Sets the queue of CUDA's kernels when this library is loaded. Only launch_on_current_stream()
// knows about streams.
#include <c10/cuda/CUDAStream.h>

#include "kernels/cuda/device_graph_cuda.h"
#include "kernels/cuda/device_operators.h"

namespace blockscope {
namespace {

// Queues on the stream of the caller's work on the current device. Memory from torch for the call
// may be released as soon as this returns, because the allocator reuses it only on the same stream.
void launch_on_current_stream(const std::function<void(void* stream)>& launch) {
  launch(static_cast<void*>(c10::cuda::getCurrentCUDAStream().stream()));
}

[[maybe_unused]] const bool registered = [] {
#define BLOCKSCOPE_KERNEL(name, Call) .name = cuda::launch_##name,
  set_cuda_queue({{BLOCKSCOPE_LAUNCHES(BLOCKSCOPE_KERNEL)},
                  launch_on_current_stream,
                  cuda::missing_code,
                  cuda::capture_graph,
                  flash_prefix});
#undef BLOCKSCOPE_KERNEL
  return true;
}();

}  // namespace
}  // namespace blockscope
