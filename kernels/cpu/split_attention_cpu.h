// The CPU path of split_attention, reuse_attention and gather_attention. The arguments are already
// checked.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/ops.h"
#include "kernels/shape_check.h"
#include "kernels/simd/tile_kernels.h"

namespace blockscope {

// The external keys that one KV head of one sequence reads.
struct KeySet {
  bool all = true;
  std::vector<int32_t> positions;  // ascending; used unless `all`
};

// The source of the external pair.
struct ExternalSource {
  std::vector<bool> reuse;     // [S * H]: heads that take the cached pair; empty: no head does
  std::vector<bool> refresh;   // [S * T]: rows that read the prefix in these heads too; empty: none
  at::Tensor cached_external;  // [S, H, T, D] float32 contiguous; undefined if no row takes it
  at::Tensor cached_lse;       // [S, H, T]
  std::vector<KeySet> sets;    // [S * K]; empty: every KV head reads its whole prefix
  at::Tensor residual;         // [S, H, T, D] float32 contiguous: a third part of `out`, for keys
  at::Tensor lse_residual;     // [S, H, T]    outside the sets; undefined if there is none
  bool values = true;          // false: no external value is read, and the external output is 0
};

SourcedAttention split_attention_cpu(const TileKernels& kernels, const AttentionSizes& sizes,
                                     const at::Tensor& q, const at::Tensor& k_ext,
                                     const at::Tensor& v_ext, const std::vector<int64_t>& ext_len,
                                     const at::Tensor& k_in, const at::Tensor& v_in,
                                     const ExternalSource& source, double scale,
                                     ExternalWeights* kept = nullptr,
                                     WeightSpread* spread = nullptr);

}  // namespace blockscope
