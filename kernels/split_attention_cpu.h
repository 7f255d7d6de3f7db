// The CPU path behind split_attention and reuse_attention. Arguments are already checked.
#pragma once

#include <vector>

#include "kernels/ops.h"
#include "kernels/shape_check.h"
#include "kernels/tile_kernels.h"

namespace blockscope {

// `reuse` [S * H]: heads whose external pair is the cached one; the cached tensors are contiguous
// and may be undefined if no head reuses.
ReuseAttention split_attention_cpu(const TileKernels& kernels, const AttentionSizes& sizes,
                                   const at::Tensor& q, const at::Tensor& k_ext,
                                   const at::Tensor& v_ext, const std::vector<int64_t>& ext_len,
                                   const at::Tensor& k_in, const at::Tensor& v_in,
                                   const at::Tensor& cached_external, const at::Tensor& cached_lse,
                                   const std::vector<bool>& reuse, double scale);

}  // namespace blockscope
