// Sets the queue of CUDA's kernels when this library is loaded. Only launch_on_current_stream()
// knows about streams.
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/Exception.h>
#include <cuda_runtime_api.h>

#include "kernels/cuda/device_graph_cuda.h"
#include "kernels/cuda/device_operators.h"

namespace blockscope {
namespace {

// Queues on the stream of the caller's work on the current device. Memory from torch for the call
// may be released as soon as this returns, because the allocator reuses it only on the same stream.
void launch_on_current_stream(const std::function<void(void* stream)>& launch) {
  launch(static_cast<void*>(c10::cuda::getCurrentCUDAStream().stream()));
}

// Multiplies three rows by two weights. False for a torch whose kernel refuses these GPUs.
bool grouped_product_works() {
  try {
    const auto options = at::dtype(at::kBFloat16).device(at::kCUDA, c10::cuda::current_device());
    const at::Tensor weights =
        at::stack({at::full({16, 16}, 1.0, options), at::full({16, 16}, 2.0, options)});
    const at::Tensor ends = at::tensor({1, 3}, at::kInt).to(options.device());
    const at::Tensor made = library_grouped_product(at::ones({3, 16}, options), weights, ends);
    const at::Tensor sums = made.to(at::kCPU, at::kFloat).sum(1);
    const float* const sum = sums.const_data_ptr<float>();
    return sum[0] == 256.0F && sum[1] == 512.0F && sum[2] == 512.0F;
  } catch (const c10::Error&) {
    return false;
  }
}

// torch's kernel for bfloat16 needs these GPUs; for others torch loops over the groups on the host.
bool groups(at::ScalarType type) {
  int major = 0;
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, c10::cuda::current_device());
  if (type != at::kBFloat16 || (major != 9 && major != 10)) return false;
  static const bool works = grouped_product_works();  // waits for the GPU, so it runs once
  return works;
}

[[maybe_unused]] const bool registered = [] {
#define BLOCKSCOPE_KERNEL(name, Call) .name = cuda::launch_##name,
  set_cuda_queue({{BLOCKSCOPE_LAUNCHES(BLOCKSCOPE_KERNEL)},
                  launch_on_current_stream,
                  cuda::missing_code,
                  cuda::capture_graph,
                  flash_prefix,
                  library_grouped_product,
                  groups});
#undef BLOCKSCOPE_KERNEL
  return true;
}();

}  // namespace
}  // namespace blockscope
