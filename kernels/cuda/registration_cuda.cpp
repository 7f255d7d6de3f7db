// The queue of CUDA's kernels, set when this library is loaded. What knows of streams is
// launch_on_current_stream() alone.
#include <c10/cuda/CUDAStream.h>

#include "kernels/cuda/device_graph_cuda.h"
#include "kernels/cuda/device_operators.h"

namespace blockscope {
namespace {

// The stream on which the caller's work on the current device is queued. Memory that was taken from
// torch for the call may be given back as soon as this returns: the allocator gives it out again on
// the same stream alone.
void launch_on_current_stream(const std::function<void(void* stream)>& launch) {
  launch(static_cast<void*>(c10::cuda::getCurrentCUDAStream().stream()));
}

[[maybe_unused]] const bool registered = [] {
#define BLOCKSCOPE_KERNEL(name, Call) .name = cuda::launch_##name,
  set_cuda_queue({{BLOCKSCOPE_LAUNCHES(BLOCKSCOPE_KERNEL)},
                  launch_on_current_stream,
                  cuda::missing_code,
                  cuda::capture_graph});
#undef BLOCKSCOPE_KERNEL
  return true;
}();

}  // namespace
}  // namespace blockscope
