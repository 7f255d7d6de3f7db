// What a decoder does to its rows between the products, each in one pass over the data where ATen
// needs several operators. Results are those of the several: narrow types are rounded wherever they
// store a tensor. Gradients: in Python (blockscope.ops) alone. float32, bfloat16 or float16;
// results never depend on the number of threads or on the other rows. A wrong shape, dtype or
// layout throws c10::Error. On a device: one kernel a call, or the fallback where there are none.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace blockscope {

/// x [..., W] of up to 4 dimensions, last one contiguous, weight [W] -> contiguous, same shape:
/// x / sqrt(mean(x^2) + eps) * weight. Narrow types: rounded once, behind the weight, or
/// (!weight_first) before it too.
at::Tensor rms_norm_rows(const at::Tensor& x, const at::Tensor& weight, double eps,
                         bool weight_first);

struct SumAndNorm {
  at::Tensor sum;   // x + y
  at::Tensor norm;  // rms_norm_rows of it
};

/// x and y of one shape and dtype, their last dimensions contiguous.
SumAndNorm add_rms_norm_rows(const at::Tensor& x, const at::Tensor& y, const at::Tensor& weight,
                             double eps, bool weight_first);

/// Rotate-half RoPE: x [S, H, T, D], last dimension contiguous, cos and sin [S or 1, 1, T, R] ->
/// [S, H, T, D] contiguous; the channels behind the first R (even) are copied. cos and sin are
/// float32 (x is rotated before anything is rounded) or of x's dtype.
at::Tensor rotate_rows(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin);

/// The queries or keys of a layer, [S, H, T, D] with their last dimension contiguous, and the norm
/// over D that they take before they are rotated.
struct HeadsToRotate {
  at::Tensor x;
  at::Tensor weight;  // [D]; undefined: none
  double eps = 0.0;
  bool weight_first = false;
};

/// rotate_rows(rms_norm_rows(x)) of all of them, one dtype, in one walk.
std::vector<at::Tensor> norm_rotate_rows(const std::vector<HeadsToRotate>& heads,
                                         const at::Tensor& cos, const at::Tensor& sin);

/// silu(gate) * up -> contiguous: same shapes of up to 4 dimensions, the last ones contiguous.
at::Tensor silu_multiply(const at::Tensor& gate, const at::Tensor& up);

// As BLOCKSCOPE_OPERATORS of ops.h.
#define BLOCKSCOPE_ROW_OPERATORS(OPERATOR) \
  OPERATOR(rms_norm_rows)                  \
  OPERATOR(add_rms_norm_rows)              \
  OPERATOR(norm_rotate_rows)               \
  OPERATOR(silu_multiply)

struct BestTokens {
  std::vector<int64_t> token;      // [R] the lowest index of the largest logit
  std::vector<float> probability;  // [R] its softmax probability, in float32; NaN where a logit of
                                   // the row is NaN or +infinity
};

/// logits [R, V], last dimension contiguous; on any device.
BestTokens best_tokens(const at::Tensor& logits);

struct TokenOdds {
  std::vector<int64_t> rank;       // [R] how many tokens have larger logits
  std::vector<float> probability;  // [R] the token's softmax probability
  std::vector<float> entropy;      // [R] of the row, in nats; both NaN where BestTokens' is
};

/// Of one token a row: logits [R, V], last dimension contiguous, on any device; tokens [R], each
/// below V. In float32.
TokenOdds token_odds(const at::Tensor& logits, const std::vector<int64_t>& tokens);

}  // namespace blockscope
