// Per-head statistics between two denoising steps of one sequence. They run at every layer of every
// step. One walk over the heads computes all statistics of a layer while a head's rows are in the
// cache. Rows that a pass did not compute hold NaN. Sums and means leave them out; a mean of no
// rows is NaN.
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

/// Vectors of a block's first step. Later steps are compared with them, at unit length. They keep
/// no tensor of the pass alive.
struct FirstRows {
  at::Tensor rows;           // [H, B, D] of any float type
  std::vector<float> scale;  // [H, B]: row * scale has length 1; a zero vector stays zero

  FirstRows() = default;
  /// Copies x[row] of x [S, H, B, D], which may have any strides.
  FirstRows(const at::Tensor& x, int64_t row);
  /// Whether rows of x can be compared with these.
  bool like(const at::Tensor& x) const;
};

/// Distances between a step's unit vectors and the first step's, per head.
struct RowGaps {
  std::vector<float> gap;        // mean_i |a_i - b_i|_2 over the block (MAGE Table 2, S2, S3)
  std::vector<float> block_gap;  // |mean_i a_i - mean_i b_i|_2, the means not renormalised (S4)
};
/// The inputs of a layer's statistics. An undefined input gives no statistics.
struct LayerStep {
  HeadAttention external, internal;            // of this step
  HeadAttention last_external, last_internal;  // of the previous step
  /// The external pair that each reuse rule takes (FlashBlock). If the rule recomputes
  /// this step, the pair is `external` itself.
  std::vector<HeadAttention> source;
  /// [source]: the kind of each row, [B] below kKindsOfRows; nullptr: the rule recomputes this
  /// step. Empty: nothing is compared by kind.
  std::vector<const uint8_t*> source_kinds;
  at::Tensor query;  // [S, H, B, D] of the batch; only `row` is used
  int64_t row = 0;
  const FirstRows* first_query = nullptr;  // like(query)
};

using KindSums = std::array<KeptSums, kKindsOfRows>;

/// One value per query head, for all H heads; the recorder keeps only the recorded ones.
struct LayerStatistics {
  std::vector<float> external_mass;        // mean_i exp(L_out) / (exp(L_in) + exp(L_out))
  std::vector<float> similarity_external;  // mean_i cos(a_i, b_i) over the block, in double: sim_X
  std::vector<float> similarity_internal;  // of FlashBlock Fig. 5
  std::vector<std::vector<ErrorSums>> reuse_error;  // [source]; sums over positions and channels
  std::vector<std::vector<KindSums>> kept;  // [source]; no heads if the rule recomputes this step
  RowGaps query;
};
LayerStatistics layer_statistics(const LayerStep& step, const HeadShape& shape);

/// Gaps of x[row] for x [S, H, B, D] with `first.like(x)`. For long rows, such as hidden states.
RowGaps row_gaps(const at::Tensor& x, int64_t row, const FirstRows& first);

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
  std::vector<double> lse;  // [R]

  explicit FirstPrediction(const PredictionRows& predicted);
  FirstPrediction() = default;
  bool defined() const { return rows.logits.defined(); }
};

/// KL(p_first || p_now) per position in nats -> [B] (MAGE Table 2, S1). NaN for positions that are
/// not `masked`, or for which one of both has no row.
std::vector<float> masked_kl(const FirstPrediction& first, const PredictionRows& now,
                             const std::vector<bool>& masked);

}  // namespace blockscope
