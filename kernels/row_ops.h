// The operators of a decoder on rows between the products, each in one pass over the data; ATen
// needs several operators. Results equal those of the several operators: narrow types are rounded
// wherever these store a tensor. Only Python (blockscope.ops) has gradients. The types are float32,
// bfloat16 and float16. Results never depend on the number of threads or the other rows. A wrong
// shape, dtype or layout throws c10::Error. On a device, each call is one kernel, or the fallback
// without kernels.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace blockscope {

/// x [..., W] of up to 4 dimensions, with a contiguous last one; weight [W] -> contiguous, same
/// shape: x / sqrt(mean(x^2) + eps) * weight. Narrow types are rounded after the multiplication by
/// the weight; without weight_first, also before it.
at::Tensor rms_norm_rows(const at::Tensor& x, const at::Tensor& weight, double eps,
                         bool weight_first);

struct SumAndNorm {
  at::Tensor sum;   // x + y
  at::Tensor norm;  // rms_norm_rows of the sum
};

/// x and y have one shape and dtype, and contiguous last dimensions.
SumAndNorm add_rms_norm_rows(const at::Tensor& x, const at::Tensor& y, const at::Tensor& weight,
                             double eps, bool weight_first);

/// Rotate-half RoPE: x [S, H, T, D] with a contiguous last dimension, cos and sin [S or 1, 1, T, R]
/// -> [S, H, T, D] contiguous. R is even; the channels after the first R are copied. cos and sin
/// are float32 (nothing is rounded before the end of the rotation) or have x's dtype.
at::Tensor rotate_rows(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin);

/// The queries or keys of a layer, [S, H, T, D] with a contiguous last dimension, and their norm
/// over D before the rotation.
struct HeadsToRotate {
  at::Tensor x;
  at::Tensor weight;  // [D]; undefined: no norm
  double eps = 0.0;
  bool weight_first = false;
};

/// rotate_rows(rms_norm_rows(x)) for all of them in one pass. They must have one dtype.
std::vector<at::Tensor> norm_rotate_rows(const std::vector<HeadsToRotate>& heads,
                                         const at::Tensor& cos, const at::Tensor& sin);

/// silu(gate) * up -> contiguous. Both have the same shape of up to 4 dimensions, with contiguous
/// last ones.
at::Tensor silu_multiply(const at::Tensor& gate, const at::Tensor& up);

// Like BLOCKSCOPE_OPERATORS of ops.h.
#define BLOCKSCOPE_ROW_OPERATORS(OPERATOR) \
  OPERATOR(rms_norm_rows)                  \
  OPERATOR(add_rms_norm_rows)              \
  OPERATOR(norm_rotate_rows)               \
  OPERATOR(silu_multiply)

struct BestTokens {
  std::vector<int64_t> token;      // [R] the lowest index of the largest logit
  std::vector<float> probability;  // [R] its softmax probability, in float32; NaN if a logit of the
                                   // row is NaN or +infinity
};

/// logits [R, V] with a contiguous last dimension, on any device.
BestTokens best_tokens(const at::Tensor& logits);

struct TokenOdds {
  std::vector<int64_t> rank;       // [R] how many tokens have larger logits
  std::vector<float> probability;  // [R] the token's softmax probability
  std::vector<float> entropy;      // [R] of the row, in nats; both are NaN if BestTokens' is
};

/// Values for one token per row, in float32. logits [R, V] with a contiguous last dimension, on any
/// device; tokens [R], each below V.
TokenOdds token_odds(const at::Tensor& logits, const std::vector<int64_t>& tokens);

}  // namespace blockscope
