// The rows of a block that a pass computed, set among all B of them: what observers and strategies
// see of a pass over a part of its block.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "probe/policies/attention_policy.h"

namespace blockscope {

/// `part`, whose dimension `dim` holds the positions `rows` [R] int64 of a block, with all B of
/// them: `missing` fills the others. `part` itself where it has all of them.
at::Tensor among_block(const at::Tensor& part, int64_t dim, const at::Tensor& rows,
                       int64_t block_length, double missing);

/// Likewise every tensor over the query rows of exact attention, with NaN.
AttentionParts among_block(const AttentionParts& parts, const at::Tensor& rows,
                           int64_t block_length);

/// The same of what has all B of them, [S, H, B, ...] each, but `present` [B] bool: NaN elsewhere.
at::Tensor where_present(const at::Tensor& part, const at::Tensor& present);
AttentionParts where_present(const AttentionParts& parts, const at::Tensor& present);

}  // namespace blockscope
