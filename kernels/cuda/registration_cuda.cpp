// The queue of CUDA's kernels, set when this library is loaded. The operators themselves are those
// of ops.h, registered by registration.cpp. What knows of streams is launch_on_current_stream()
// alone.
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
  set_cuda_queue({{.split_attention = cuda::launch_split_attention,
                   .merge = cuda::launch_merge,
                   .similarity = cuda::launch_similarity,
                   .select = cuda::launch_select,
                   .means = cuda::launch_means,
                   .top_k = cuda::launch_top_k,
                   .count_union = cuda::launch_union,
                   .bounds = cuda::launch_bounds,
                   .page_scores = cuda::launch_page_scores,
                   .prefill = cuda::launch_prefill,
                   .norm = cuda::launch_norm,
                   .rotate = cuda::launch_rotate,
                   .gate = cuda::launch_gate},
                  launch_on_current_stream,
                  cuda::missing_code,
                  cuda::capture_graph});
  return true;
}();

}  // namespace
}  // namespace blockscope
