// The operators on CUDA: registered with the dispatcher, and in the table behind ops.h, when this
// library is loaded. Everything that knows of streams is launch_on_current_stream().
#include <c10/core/DeviceGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <tuple>

#include "kernels/device_operators.h"
#include "kernels/split_attention_device.h"

namespace blockscope {
namespace {

using at::Tensor;
using Tensors5 = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>;

// Calls `launch(stream)` with the stream on which the caller's work on this device is queued.
// Memory that was taken from torch for the call may be given back as soon as this returns: the
// allocator gives it out again on the same stream alone.
template <class Launch>
void launch_on_current_stream(const at::Device& device, const Launch& launch) {
  launch(static_cast<void*>(c10::cuda::getCurrentCUDAStream(device.index()).stream()));
}

SplitAttention split(const Tensor& q, const Tensor& k_ext, const Tensor& v_ext,
                     const Tensor& ext_len, const Tensor& k_in, const Tensor& v_in, double scale) {
  const c10::OptionalDeviceGuard guard(q.device());
  return split_attention_on(
      [&](const SplitCall& call) {
        launch_on_current_stream(q.device(),
                                 [&](void* stream) { cuda::launch_split_attention(call, stream); });
      },
      q, k_ext, v_ext, ext_len, k_in, v_in, scale);
}

Tensors5 split_cuda(const Tensor& q, const Tensor& k_ext, const Tensor& v_ext,
                    const Tensor& ext_len, const Tensor& k_in, const Tensor& v_in, double scale) {
  SplitAttention r = split(q, k_ext, v_ext, ext_len, k_in, v_in, scale);
  return {r.out.contiguous(), r.external, r.lse_external, r.internal, r.lse_internal};
}

[[maybe_unused]] const bool registered = [] {
  set_cuda_operators({.split_attention = split});
  return true;
}();

}  // namespace

TORCH_LIBRARY_IMPL(blockscope, CUDA, m) { m.impl("split_attention", split_cuda); }

}  // namespace blockscope
