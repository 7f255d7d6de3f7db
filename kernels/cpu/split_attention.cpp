// split_attention and reuse_attention: checks, then the CPU path.
#include <c10/util/Exception.h>

#include <vector>

#include "kernels/cpu/split_attention_cpu.h"
#include "kernels/cuda/attention_device.h"
#include "kernels/cuda/device_operators.h"
#include "kernels/ops.h"
#include "kernels/shape_check.h"
#include "kernels/simd/tile_kernels.h"

namespace blockscope {
namespace {

constexpr const char* kSplit = "split_attention";
constexpr const char* kReuse = "reuse_attention";

}  // namespace

SplitAttention split_attention(const at::Tensor& q, const at::Tensor& k_ext,
                               const at::Tensor& v_ext, const at::Tensor& ext_len,
                               const at::Tensor& k_in, const at::Tensor& v_in, double scale,
                               ExternalWeights* kept) {
  if (const DeviceScope device{q}) {
    if (!device.has_kernels()) {
      return fallback::split_attention(q, k_ext, v_ext, ext_len, k_in, v_in, scale);
    }
    return split_attention_on(device.queue(), q, k_ext, v_ext, ext_len, k_in, v_in, scale);
  }
  const AttentionSizes sizes = check_split_attention(kSplit, q, k_ext, v_ext, k_in, v_in);
  const std::vector<int64_t> lengths =
      check_lengths(kSplit, "ext_len", ext_len, sizes.sequences, sizes.external_keys);
  ReuseAttention result = split_attention_cpu(best_tile_kernels(), sizes, q, k_ext, v_ext, lengths,
                                              k_in, v_in, {}, scale, kept);
  return {result.out, result.external, result.lse_external, result.internal, result.lse_internal};
}

ReuseAttention reuse_attention(const at::Tensor& q, const at::Tensor& k_ext,
                               const at::Tensor& v_ext, const at::Tensor& ext_len,
                               const at::Tensor& k_in, const at::Tensor& v_in,
                               const at::Tensor& cached_external, const at::Tensor& cached_lse,
                               const at::Tensor& reuse_mask, double scale) {
  if (const DeviceScope device{q}) {
    if (!device.has_kernels()) {
      return fallback::reuse_attention(q, k_ext, v_ext, ext_len, k_in, v_in, cached_external,
                                       cached_lse, reuse_mask, scale);
    }
    return reuse_attention_on(device.queue(), q, k_ext, v_ext, ext_len, k_in, v_in, cached_external,
                              cached_lse, reuse_mask, scale);
  }
  const AttentionSizes sizes = check_split_attention(kReuse, q, k_ext, v_ext, k_in, v_in);
  const std::vector<int64_t> lengths =
      check_lengths(kReuse, "ext_len", ext_len, sizes.sequences, sizes.external_keys);
  ExternalSource source;
  source.reuse = check_reuse_mask(kReuse, reuse_mask, sizes);
  bool any = false;
  for (const bool flag : source.reuse) any = any || flag;
  if (any || cached_external.defined()) {
    check_cpu(kReuse, "cached_external", cached_external, at::kFloat);
    check_shape(kReuse, "cached_external", cached_external, q.sizes());
    source.cached_external = cached_external.contiguous();
  }
  if (any || cached_lse.defined()) {
    check_cpu(kReuse, "cached_lse", cached_lse, at::kFloat);
    check_shape(kReuse, "cached_lse", cached_lse, q.sizes().slice(0, 3));
    source.cached_lse = cached_lse.contiguous();
  }
  return split_attention_cpu(best_tile_kernels(), sizes, q, k_ext, v_ext, lengths, k_in, v_in,
                             source, scale);
}

}  // namespace blockscope
