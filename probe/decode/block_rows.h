// Puts the rows that a pass over a part of a block computed into their places among all B rows, as
// observers and strategies expect them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "probe/policies/attention_policy.h"

namespace blockscope {

/// Dimension `dim` of `part` holds the positions `rows` [R] int64 of a block; that of the result
/// holds all B positions. `missing` fills the other positions. Returns `part` itself if it has all
/// of them.
at::Tensor among_block(const at::Tensor& part, int64_t dim, const at::Tensor& rows,
                       int64_t block_length, double missing);

/// The same for every tensor over the query rows of exact attention, filled with NaN.
AttentionParts among_block(const AttentionParts& parts, const at::Tensor& rows,
                           int64_t block_length);

/// Copies with NaN at the positions where `present` [B] bool is false; tensors are [S, H, B, ...].
at::Tensor where_present(const at::Tensor& part, const at::Tensor& present);
AttentionParts where_present(const AttentionParts& parts, const at::Tensor& present);

}  // namespace blockscope
