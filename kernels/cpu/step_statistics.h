// Per-head statistics between two denoising steps of one sequence. They run at every layer of every
// step: one walk over the heads does all of a layer's, so that a head's rows are read while they
// are in the cache. Rows that a pass did not compute hold NaN: sums and means leave them out, and a
// mean of none is NaN.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "kernels/simd/statistics_kernels.h"

namespace blockscope {

struct HeadShape {
  int64_t heads = 0;  // H
  int64_t block = 0;  // B, rows of a head
  int64_t dim = 0;    // D, channels of a row
};

/// The external or internal attention of one sequence at one layer: a view that keeps the batch's
/// tensors alive.
struct HeadAttention {
  at::Tensor outputs, lses;       // of the whole batch
  const float* output = nullptr;  // [H, B, D]
  const float* lse = nullptr;     // [H, B]

  HeadAttention() = default;
  /// outputs [S, H, B, D], lses [S, H, B], float32 contiguous; `row` in [0, S).
  HeadAttention(const at::Tensor& outputs, const at::Tensor& lses, int64_t row);
  bool defined() const { return output != nullptr; }
};

/// Vectors of a block's first step, which later steps are compared with at unit length; nothing of
/// the pass is kept alive.
struct FirstRows {
  at::Tensor rows;           // [H, B, D] of any float type
  std::vector<float> scale;  // [H, B]: rows times it have length 1, a zero vector stays zero

  FirstRows() = default;
  /// Of x[row], x [S, H, B, D] of any strides.
  FirstRows(const at::Tensor& x, int64_t row);
  /// Whether x[row] can be compared with them.
  bool like(const at::Tensor& x) const;
};

/// How far a step's unit vectors are from the first step's, per head.
struct RowGaps {
  std::vector<float> gap;        // mean_i |a_i - b_i|_2 over the block (MAGE Table 2, S2, S3)
  std::vector<float> block_gap;  // |mean_i a_i - mean_i b_i|_2, the means not renormalised (S4)
};
/// What a layer's statistics are taken of; what is not defined gives none.
struct LayerStep {
  HeadAttention external, internal;            // of this step
  HeadAttention last_external, last_internal;  // of the step before it
  /// The external pair that each rule of reuse takes (FlashBlock's M < tau); `external` itself for
  /// a step that the rule recomputes.
  std::vector<HeadAttention> source;
  at::Tensor query;  // [S, H, B, D] of the batch, `row` of it is looked at
  int64_t row = 0;
  const FirstRows* first_query = nullptr;  // like(query)
};

/// One value per query head (all H of them; the recorder keeps the recorded ones).
struct LayerStatistics {
  std::vector<float> external_mass;        // mean_i exp(L_out) / (exp(L_in) + exp(L_out))
  std::vector<float> similarity_external;  // mean_i cos(a_i, b_i) over the block, in double: sim_X
  std::vector<float> similarity_internal;  // of FlashBlock Fig. 5
  std::vector<std::vector<ErrorSums>> reuse_error;  // by source; over positions and channels
  RowGaps query;
};
LayerStatistics layer_statistics(const LayerStep& step, const HeadShape& shape);

/// Gaps of x[row] of x [S, H, B, D], `first.like(x)`, for rows that are long: hidden states.
RowGaps row_gaps(const at::Tensor& x, int64_t row, const FirstRows& first);

/// Logits of a block's positions, all of them or some.
struct PredictionRows {
  at::Tensor logits;         // [R, V] of any float type
  std::vector<int64_t> row;  // [B] of a position; -1: it has none

  PredictionRows() = default;
  explicit PredictionRows(const at::Tensor& all);  // [B, V]
  /// `rows` [R, V], by position those that are true in `predicted` [B].
  PredictionRows(const at::Tensor& rows, const std::vector<bool>& predicted);
};

/// What KL to a block's first step needs of that step.
struct FirstPrediction {
  PredictionRows rows;
  std::vector<double> lse;  // [R]

  explicit FirstPrediction(const PredictionRows& predicted);
  FirstPrediction() = default;
  bool defined() const { return rows.logits.defined(); }
};

/// KL(p_first || p_now) per position in nats -> [B]; NaN where not `masked`, and where one of both
/// has no row (MAGE Table 2, S1).
std::vector<float> masked_kl(const FirstPrediction& first, const PredictionRows& now,
                             const std::vector<bool>& masked);

}  // namespace blockscope
