// The projections of one attention layer: what a layer does to its input before and after the
// attention itself. A cache that keeps rows projects only a part of a pass's rows.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "kernels/row_ops.h"
#include "probe/model/linear.h"

namespace blockscope {

/// cos and sin of the rows' positions, [S, 1, T, R]. The first R of a head's D channels are
/// rotated.
struct RotaryRows {
  at::Tensor cos, sin;
  at::Tensor query_scale = {};  // [S, 1, T, 1], multiplies rotated queries; undefined: nothing does

  /// The values for the rows `index` [N] int64, which may be on the host: [S, 1, N, R].
  RotaryRows rows(const at::Tensor& index) const;
};

/// Root mean square norm over the last dimension, computed in float32. SDAR multiplies by the
/// weight before it casts back, Qwen3 and LLaDA after it. In float32 both are equal.
struct RmsNorm {
  at::Tensor weight;  // [width]
  double eps = 0.0;
  bool weight_before_cast = false;

  bool defined() const { return weight.defined(); }
  at::Tensor operator()(const at::Tensor& x) const;
  /// The norm of x + y, and x + y itself.
  SumAndNorm of_sum(const at::Tensor& x, const at::Tensor& y) const;
};

/// S sequences, T rows, H query heads, K KV heads, D head_dim. x [S, T, hidden_size] is the input
/// of the layer after its norm.
struct AttentionLayer {
  int64_t num_heads = 0, num_kv_heads = 0, head_dim = 0;
  Linear q_proj, k_proj, v_proj, o_proj;
  Linear qkv_proj;                 // q, k and v as one layer (pack()); may be undefined
  RmsNorm q_norm, k_norm, v_norm;  // over D; may be undefined
  bool rotate_in_float32 = false;  // LLaDA: q and k are rotated before they are rounded
  bool values_are_keys = false;    // no v_proj: values come from k_proj, before norm and RoPE
  double softmax_scale = 0.0;      // 0: 1 / sqrt(D)

  struct Projections {
    at::Tensor q, k, v;
  };
  /// Query, key and value of the same rows, with one read of their weights.
  Projections project(const at::Tensor& x, const RotaryRows& rotary) const;
  at::Tensor query(const at::Tensor& x, const RotaryRows& rotary) const;  // [S, H, T, D]
  at::Tensor key(const at::Tensor& x, const RotaryRows& rotary) const;    // [S, K, T, D]
  at::Tensor value(const at::Tensor& x) const;                            // [S, K, T, D]
  /// z [S, H, T, D], the attention's output -> [S, T, hidden_size].
  at::Tensor output(const at::Tensor& z) const;
  double scale() const;  // scale of the softmax
  void pack();           // packs its linear layers; on a device q, k and v become one

 private:
  std::vector<at::Tensor> products(const at::Tensor& x) const;
  at::Tensor value_heads(const at::Tensor& flat) const;
  HeadsToRotate query_heads(const at::Tensor& flat) const;
  HeadsToRotate key_heads(const at::Tensor& flat) const;
  std::vector<at::Tensor> turned(const std::vector<HeadsToRotate>& heads,
                                 const RotaryRows& rotary) const;
};

}  // namespace blockscope
