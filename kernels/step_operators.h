// Torch operators for a recorder outside this library (blockscope.record in Python): the functions
// that the runtime's own recorder calls, on tensors of the CPU; some of a GPU, too. They are not
// differentiable. A wrong shape, dtype or layout throws c10::Error.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <tuple>
#include <vector>

#include "kernels/ops.h"

namespace blockscope {

struct RecordedAttention {
  SplitAttention split;
  WeightSpread spread;
  TopKSets sets;  // without the tokens' own sets; undefined for set_size 0
};

/// split_attention with what a recorder wants of its weights: how they are spread, with the ranges
/// that end at `ends` [S, R] int64 (WeightSpread::ends), and, for set_size above 0, the sets of
/// topk_sets: index and probability [S, K, set_size], union_size [S, K]. with_block: normalises
/// over all keys, not only the external ones.
///   result [S, H, T, D] of q's type (may be undefined): the attention R over all keys, as the
///   model computed it. Then no external value is read: A_out = R + exp(L_in - L_out) (R - A_in),
///   from eqs. 5-7 of FlashBlock. Its error is that of R, divided by the weight of the external
///   keys. So a head computes A_out anew if they have less than half of it in any row.
RecordedAttention recorded_attention(const at::Tensor& q, const at::Tensor& k_ext,
                                     const at::Tensor& v_ext, const at::Tensor& ext_len,
                                     const at::Tensor& k_in, const at::Tensor& v_in, double scale,
                                     const at::Tensor& ends, int64_t set_size, bool with_block,
                                     const at::Tensor& result = {});

/// layer_statistics (step_statistics.h) of sequence `row`, without queries. All inputs are
/// contiguous float32 on the CPU or on a GPU, the kinds on the CPU. internal [S, H, B, D] and
/// lse_internal [S, H, B]. external and lse_external alike; none without a prefix. The previous
/// step's outputs, or none. Each source with its lse, and the kind of each row, [B] uint8 below 3,
/// or [0]: the source is this step; none without a prefix. -> external_mass [H],
/// similarity_external [H], similarity_internal [H], each empty if an input is missing, errors
/// [source, H, 4] (e^2, |e|, reference^2, dot product), and kept [source, H, 3, 5] by kind
/// (KeptSums; NaN if the source is this step); all float32.
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> step_statistics(
    const std::optional<at::Tensor>& external, const std::optional<at::Tensor>& lse_external,
    const at::Tensor& internal, const at::Tensor& lse_internal,
    const std::optional<at::Tensor>& last_external, const std::optional<at::Tensor>& last_internal,
    const std::vector<at::Tensor>& sources, const std::vector<at::Tensor>& source_lses,
    const std::vector<at::Tensor>& source_kinds, int64_t row);

/// Gaps between the unit vectors of x[row] and first[row] (step_statistics.h), both [S, H, B, D] of
/// one float type -> gap [H], block_gap [H], float32.
std::tuple<at::Tensor, at::Tensor> step_gaps(const at::Tensor& x, const at::Tensor& first,
                                             int64_t row);

/// log(sum(exp(x))) of each row of x [R, V] -> [R] float64.
at::Tensor row_log_sum_exp(const at::Tensor& x);

/// KL(first || now) of each row in nats -> [R] float32. first, now [R, V] of one type; first_lse
/// [R] from row_log_sum_exp. Rows that aren't `wanted` ([R] bool) give NaN.
at::Tensor row_divergence(const at::Tensor& first, const at::Tensor& first_lse,
                          const at::Tensor& now, const at::Tensor& wanted);

/// best_tokens (row_ops.h) -> token [R] int32, probability [R] float32.
std::tuple<at::Tensor, at::Tensor> best_token_rows(const at::Tensor& logits);

}  // namespace blockscope
