// split_attention and reuse_attention: checks, then the CPU path.
#include <c10/util/Exception.h>

#include <vector>

#include "kernels/cpu/split_attention_cpu.h"
#include "kernels/cuda/device_operators.h"
#include "kernels/operator.h"
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
                               ExternalWeights* kept, WeightSpread* spread) {
  if (const DeviceScope device{q}) {
    return device.run(split_attention_on, fallback::split_attention, q, k_ext, v_ext, ext_len, k_in,
                      v_in, scale, kept, spread);
  }
  const AttentionSizes sizes = check_split_attention(kSplit, q, k_ext, v_ext, k_in, v_in);
  const std::vector<int64_t> lengths =
      check_lengths(kSplit, "ext_len", ext_len, sizes.sequences, sizes.external_keys);
  return split_attention_cpu(best_tile_kernels(), sizes, q, k_ext, v_ext, lengths, k_in, v_in, {},
                             scale, kept, spread);
}

SourcedAttention reuse_attention(const at::Tensor& q, const at::Tensor& k_ext,
                                 const at::Tensor& v_ext, const at::Tensor& ext_len,
                                 const at::Tensor& k_in, const at::Tensor& v_in,
                                 const at::Tensor& cached_external, const at::Tensor& cached_lse,
                                 const at::Tensor& reuse_mask, double scale, WeightSpread* spread,
                                 const at::Tensor& refresh_rows) {
  if (const DeviceScope device{q}) {
    return device.run(reuse_attention_on, fallback::reuse_attention, q, k_ext, v_ext, ext_len, k_in,
                      v_in, cached_external, cached_lse, reuse_mask, scale, spread, refresh_rows);
  }
  const AttentionSizes sizes = check_split_attention(kReuse, q, k_ext, v_ext, k_in, v_in);
  const std::vector<int64_t> lengths =
      check_lengths(kReuse, "ext_len", ext_len, sizes.sequences, sizes.external_keys);
  ExternalSource source;
  source.reuse = check_reuse_mask(kReuse, reuse_mask, sizes);
  source.refresh = check_refresh_rows(kReuse, refresh_rows, sizes);
  const bool any = takes_cached(source.reuse, source.refresh, sizes);
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
                             source, scale, nullptr, spread);
}

TORCH_LIBRARY_FRAGMENT(blockscope, m) {
  define_operator(
      m,
      "split_attention(Tensor q, Tensor k_ext, Tensor v_ext, Tensor ext_len, Tensor k_in, "
      "Tensor v_in, float scale) -> (Tensor out, Tensor external, Tensor lse_external, "
      "Tensor internal, Tensor lse_internal)",
      [](const at::Tensor& q, const at::Tensor& k_ext, const at::Tensor& v_ext,
         const at::Tensor& ext_len, const at::Tensor& k_in, const at::Tensor& v_in, double scale) {
        const SplitAttention r = split_attention(q, k_ext, v_ext, ext_len, k_in, v_in, scale);
        return std::tuple(r.out.contiguous(), r.external, r.lse_external, r.internal,
                          r.lse_internal);
      },
      [](const at::Tensor& q, const at::Tensor&, const at::Tensor&, const at::Tensor&,
         const at::Tensor&, const at::Tensor&, double) { return meta::sides(q); });
  define_operator(
      m,
      "reuse_attention(Tensor q, Tensor k_ext, Tensor v_ext, Tensor ext_len, Tensor k_in, "
      "Tensor v_in, Tensor cached_external, Tensor cached_lse, Tensor reuse_mask, float scale, "
      "Tensor? refresh_rows=None) -> (Tensor out, Tensor external, Tensor lse_external, "
      "Tensor internal, Tensor lse_internal, Tensor keys_read)",
      [](const at::Tensor& q, const at::Tensor& k_ext, const at::Tensor& v_ext,
         const at::Tensor& ext_len, const at::Tensor& k_in, const at::Tensor& v_in,
         const at::Tensor& cached_external, const at::Tensor& cached_lse,
         const at::Tensor& reuse_mask, double scale, const OptionalTensor& refresh_rows) {
        const SourcedAttention r =
            reuse_attention(q, k_ext, v_ext, ext_len, k_in, v_in, cached_external, cached_lse,
                            reuse_mask, scale, nullptr, refresh_rows.value_or(at::Tensor()));
        return std::tuple(r.out.contiguous(), r.external, r.lse_external, r.internal,
                          r.lse_internal, r.keys_read);
      },
      [](const at::Tensor& q, const at::Tensor& k_ext, const at::Tensor&, const at::Tensor&,
         const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
         const at::Tensor&, double,
         const OptionalTensor&) { return meta::sourced_sides(q, k_ext); });
}

}  // namespace blockscope
