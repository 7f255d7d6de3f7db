// Per-head statistics between two denoising steps of one sequence, on float32 CPU tensors. Each
// writes one value per query head (all H of them; the recorder keeps the recorded ones).
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <vector>

namespace blockscope {

/// The external or internal attention of one sequence at one layer.
struct HeadAttention {
  at::Tensor output;  // [H, B, D] float32 contiguous
  at::Tensor lse;     // [H, B] float32 contiguous
};

/// mean_i cos(a_i, b_i) over the block: sim_X of FlashBlock Fig. 5. a, b [H, B, D] -> [H].
std::vector<float> mean_similarity(const at::Tensor& a, const at::Tensor& b);

/// mean_i exp(L_out) / (exp(L_in) + exp(L_out)) -> [H].
std::vector<float> mean_external_mass(const at::Tensor& lse_external,
                                      const at::Tensor& lse_internal);

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
                                   const HeadAttention& internal);

/// x [..., D] scaled to unit length along D, float32; a zero vector stays zero.
at::Tensor unit_normalised(const at::Tensor& x);

/// mean_i |a_i - b_i|_2 over the block, a, b [H, B, D] unit vectors -> [H] (MAGE Table 2, S2, S3).
std::vector<float> mean_gap(const at::Tensor& a, const at::Tensor& b);

/// |mean_i a_i - mean_i b_i|_2, the means not renormalised -> [H] (MAGE Table 2, S4).
std::vector<float> block_average_gap(const at::Tensor& a, const at::Tensor& b);

/// KL(p_first || p_now) per position in nats; log probabilities [B, V] -> [B]; NaN where not
/// `masked` (MAGE Table 2, S1).
std::vector<float> masked_kl(const at::Tensor& log_p_first, const at::Tensor& log_p_now,
                             const std::vector<bool>& masked);

}  // namespace blockscope
