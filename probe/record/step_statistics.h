// Per-head statistics between two denoising steps of one sequence. They run at every layer of every
// step, so each is one loop over raw float32, without temporary tensors. `out` arguments hold one
// value per query head (all H of them; the recorder keeps the recorded ones). Rows that a pass did
// not compute hold NaN: sums and means leave them out, and a mean of none is NaN.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace blockscope {

struct HeadShape {
  int64_t heads = 0;  // H
  int64_t block = 0;  // B, rows of a head
  int64_t dim = 0;    // D, channels of a row

  int64_t rows() const { return heads * block; }
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

/// mean_i cos(a_i, b_i) over the block, in double: sim_X of FlashBlock Fig. 5. a, b [H, B, D].
void mean_similarity(const float* a, const float* b, const HeadShape& shape, float* out);

/// mean_i exp(L_out) / (exp(L_in) + exp(L_out)); lse [H, B].
void mean_external_mass(const float* lse_external, const float* lse_internal,
                        const HeadShape& shape, float* out);

/// Sums over positions and channels of one head: e = merged(source, internal) - ref,
/// ref = merged(external, internal) (FlashBlock eq. 9).
struct ErrorSums {
  double squared = 0.0;    // sum e^2
  double absolute = 0.0;   // sum |e|
  double reference = 0.0;  // sum ref^2
  double dot = 0.0;        // sum ref * merged
};

/// `source` is the external pair a reuse rule would take; pass `external` itself for a step the
/// rule recomputes. -> [H].
std::vector<ErrorSums> reuse_error(const HeadAttention& source, const HeadAttention& external,
                                   const HeadAttention& internal, const HeadShape& shape);

/// Rows of x[row], x [S, H, B, D] of any float type and any strides but the last, scaled to unit
/// length along D: [H, B, D]; a zero vector stays zero.
std::vector<float> unit_normalised(const at::Tensor& x, int64_t row);

/// gap: mean_i |a_i - b_i|_2 over the block (MAGE Table 2, S2, S3); block_gap: |mean_i a_i -
/// mean_i b_i|_2, the means not renormalised (S4). a, b [H, B, D] unit vectors.
void unit_gaps(const std::vector<float>& a, const std::vector<float>& b, const HeadShape& shape,
               float* gap, float* block_gap);

/// What KL to a block's first step needs of that step.
struct FirstPrediction {
  at::Tensor log_p, p;  // [B, V] float32

  explicit FirstPrediction(const at::Tensor& logits);  // [B, V] of any float type
  FirstPrediction() = default;
  bool defined() const { return p.defined(); }
};

/// KL(p_first || p_now) per position in nats; logits [B, V] of now -> [B]; NaN where not `masked`
/// (MAGE Table 2, S1).
std::vector<float> masked_kl(const FirstPrediction& first, const at::Tensor& logits,
                             const std::vector<bool>& masked);

}  // namespace blockscope
