// The operators on CUDA: registered with the dispatcher, and in the table behind ops.h, when this
// library is loaded. What knows of streams is launch_on_current_stream() alone.
#include <c10/core/DeviceGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <tuple>

#include "kernels/attention_device.h"
#include "kernels/device_operators.h"

namespace blockscope {
namespace {

using at::Tensor;
using Tensors5 = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>;
using Tensors6 = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

// The stream on which the caller's work on the current device is queued. Memory that was taken from
// torch for the call may be given back as soon as this returns: the allocator gives it out again on
// the same stream alone.
void launch_on_current_stream(const std::function<void(void* stream)>& launch) {
  launch(static_cast<void*>(c10::cuda::getCurrentCUDAStream().stream()));
}

const DeviceQueue& queue() {
  static const DeviceQueue instance{{.split_attention = cuda::launch_split_attention},
                                    launch_on_current_stream};
  return instance;
}

SplitAttention split(const Tensor& q, const Tensor& k_ext, const Tensor& v_ext,
                     const Tensor& ext_len, const Tensor& k_in, const Tensor& v_in, double scale) {
  const c10::OptionalDeviceGuard guard(q.device());
  return split_attention_on(queue(), q, k_ext, v_ext, ext_len, k_in, v_in, scale);
}

ReuseAttention reuse(const Tensor& q, const Tensor& k_ext, const Tensor& v_ext,
                     const Tensor& ext_len, const Tensor& k_in, const Tensor& v_in,
                     const Tensor& cached_external, const Tensor& cached_lse,
                     const Tensor& reuse_mask, double scale) {
  const c10::OptionalDeviceGuard guard(q.device());
  return reuse_attention_on(queue(), q, k_ext, v_ext, ext_len, k_in, v_in, cached_external,
                            cached_lse, reuse_mask, scale);
}

// --- the dispatcher's signatures

Tensors5 split_cuda(const Tensor& q, const Tensor& k_ext, const Tensor& v_ext,
                    const Tensor& ext_len, const Tensor& k_in, const Tensor& v_in, double scale) {
  SplitAttention r = split(q, k_ext, v_ext, ext_len, k_in, v_in, scale);
  return {r.out.contiguous(), r.external, r.lse_external, r.internal, r.lse_internal};
}

Tensors6 reuse_cuda(const Tensor& q, const Tensor& k_ext, const Tensor& v_ext,
                    const Tensor& ext_len, const Tensor& k_in, const Tensor& v_in,
                    const Tensor& cached_external, const Tensor& cached_lse,
                    const Tensor& reuse_mask, double scale) {
  ReuseAttention r =
      reuse(q, k_ext, v_ext, ext_len, k_in, v_in, cached_external, cached_lse, reuse_mask, scale);
  return {r.out.contiguous(), r.external, r.lse_external, r.internal, r.lse_internal, r.keys_read};
}

[[maybe_unused]] const bool registered = [] {
  set_cuda_operators({.split_attention = split, .reuse_attention = reuse});
  return true;
}();

}  // namespace

TORCH_LIBRARY_IMPL(blockscope, CUDA, m) {
  m.impl("split_attention", split_cuda);
  m.impl("reuse_attention", reuse_cuda);
}

}  // namespace blockscope
