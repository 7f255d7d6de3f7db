// Per-head statistics between two denoising steps of one sequence. They run at every layer of every
// step, on the device of the step's values. One walk over the heads computes all statistics of a
// layer while a head's rows are in the cache. Rows that a pass did not compute hold NaN. Sums and
// means leave them out; a mean of no rows is NaN.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <vector>

#include "kernels/simd/statistics_kernels.h"

namespace blockscope {

struct HeadShape {
  int64_t heads = 0;  // H
  int64_t block = 0;  // B, rows of a head
  int64_t dim = 0;    // D, channels of a row
};

/// The external or internal attention of one sequence at one layer. A view that keeps the batch's
/// tensors alive, on the CPU or on a device.
struct HeadAttention {
  at::Tensor outputs;             // [H, B, D]
  at::Tensor lses;                // [H, B]
  const float* output = nullptr;  // their data
  const float* lse = nullptr;

  HeadAttention() = default;
  /// Entry `row` of outputs [S, H, B, D] and lses [S, H, B], float32.
  HeadAttention(const at::Tensor& outputs, const at::Tensor& lses, int64_t row);
  bool defined() const { return output != nullptr; }
};

/// Vectors of a block's first step. Later steps are compared with them, at unit length. They keep
/// no tensor of the pass alive.
struct FirstRows {
  at::Tensor rows;           // [H, B, D] of any float type, on x's device
  std::vector<float> scale;  // [H, B]: row * scale has length 1; a zero vector stays zero. CPU only

  FirstRows() = default;
  /// Copies x[row] of x [S, H, B, D], which may have any strides.
  FirstRows(const at::Tensor& x, int64_t row);
  /// Whether rows of x can be compared with these.
  bool like(const at::Tensor& x) const;
};

/// Distances between a step's unit vectors and the first step's, per head: float32 [H].
struct RowGaps {
  at::Tensor gap;        // mean_i |a_i - b_i|_2 over the block (MAGE Table 2, S2, S3)
  at::Tensor block_gap;  // |mean_i a_i - mean_i b_i|_2, the means not renormalised (S4)
};
/// The inputs of a layer's statistics, all on one device. An undefined input gives no statistics.
struct LayerStep {
  HeadAttention external, internal;            // of this step
  HeadAttention last_external, last_internal;  // of the previous step
  /// The external pair that each reuse rule takes (FlashBlock). If the rule recomputes
  /// this step, the pair is `external` itself. At most kMostSources.
  std::vector<HeadAttention> source;
  /// [source]: the kind of each row, [B] below kKindsOfRows, on the host; nullptr: the rule
  /// recomputes this step. Empty: nothing is compared by kind.
  std::vector<const uint8_t*> source_kinds;
  at::Tensor query;  // [S, H, B, D] of the batch; only `row` is used
  int64_t row = 0;
  const FirstRows* first_query = nullptr;  // like(query)
};

/// Values of all H query heads, float32 on the step's device; undefined: an input is missing.
struct LayerStatistics {
  at::Tensor external_mass;        // [H]: mean_i exp(L_out) / (exp(L_in) + exp(L_out))
  at::Tensor similarity_external;  // [H]: mean_i cos(a_i, b_i) over the block: sim_X
  at::Tensor similarity_internal;  // [H], of FlashBlock Fig. 5
  at::Tensor reuse_error;  // [source, H, 4]: the members of ErrorSums, over positions and channels
  at::Tensor kept;  // [kinds of sources, H, kKindsOfRows, 5]: KeptSums; NaN: the rule recomputes
  RowGaps query;
};
LayerStatistics layer_statistics(const LayerStep& step, const HeadShape& shape);
/// The members that the step's inputs give, not yet filled. They share one tensor.
LayerStatistics empty_statistics(const LayerStep& step, const HeadShape& shape);

/// Gaps of x[row] for x [S, H, B, D] with `first.like(x)`. For long rows, such as hidden states.
RowGaps row_gaps(const at::Tensor& x, int64_t row, const FirstRows& first);
/// Of `heads` heads, on x's device, not yet filled.
RowGaps empty_gaps(const at::Tensor& x, int64_t heads);

/// Logits of all or some positions of a block.
struct PredictionRows {
  at::Tensor logits;         // [R, V] of any float type
  std::vector<int64_t> row;  // [B]: row of each position; -1: it has none

  PredictionRows() = default;
  explicit PredictionRows(const at::Tensor& all);  // [B, V]
  /// `rows` [R, V]: the positions that are true in `predicted` [B], in order.
  PredictionRows(const at::Tensor& rows, const std::vector<bool>& predicted);
};

/// The values of a block's first step that the KL to it needs.
struct FirstPrediction {
  PredictionRows rows;
  at::Tensor lse;  // [R] float64, on the logits' device

  explicit FirstPrediction(const PredictionRows& predicted);
  FirstPrediction() = default;
  bool defined() const { return rows.logits.defined(); }
};

/// KL(p_first || p_now) per position in nats -> [B] float32 on the logits' device (MAGE Table 2,
/// S1). NaN for positions that are not `masked`, or for which one of both has no row.
at::Tensor masked_kl(const FirstPrediction& first, const PredictionRows& now,
                     const std::vector<bool>& masked);

}  // namespace blockscope
