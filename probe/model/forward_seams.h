// The seams of a forward pass (d2Cache's hooks: attention and FFN of a layer). The model knows only
// this interface. Attention policies, KV caches, token-selecting caches (dLLM-Cache, d2Cache) and
// the trainer's masked attention implement it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>

#include "kernels/ops.h"
#include "probe/model/attention_layer.h"
#include "probe/model/router_choice.h"

namespace blockscope {

/// What a layer hands to its attention: after QK-norm and RoPE.
struct AttentionInput {
  int64_t layer = 0;
  const at::Tensor& q;             // [S, H, T, D]
  const at::Tensor& k;             // [S, K, T, D]
  const at::Tensor& v;             // [S, K, T, D]
  double scale = 1.0;              // softmax scale, 1/sqrt(D)
  bool keep_weights = false;       // an exact step must also return its external weights
  WeightSpread* spread = nullptr;  // to fill with the keys that the step reads; null: not asked for
};

/// S sequences, T positions of this pass, H query heads, K KV heads, D head_dim.
class ForwardSeams {
 public:
  virtual ~ForwardSeams() = default;

  /// Whether the rows are a canvas of random tokens, which DiffusionGemma runs as its decoder and
  /// all other rows as its encoder.
  virtual bool on_canvas() const { return false; }

  /// The rows whose final hidden states are read: int64 [R], ascending; none: all T rows. For the
  /// other rows, the last layer computes only keys and values.
  virtual std::optional<at::Tensor> needed_rows() const { return std::nullopt; }

  /// The attention part of a layer without its residual: x [S, T, hidden_size], after the norm ->
  /// same shape, or at the last layer only the needed rows, [S, R, hidden_size]. A cache may
  /// compute fewer rows and take the others from earlier passes.
  virtual at::Tensor attention_block(int64_t layer, const AttentionLayer& weights,
                                     const at::Tensor& x, const RotaryRows& rotary) {
    const auto [q, k, v] = weights.project(x, rotary);
    return weights.output(attention({layer, q, k, v, weights.scale()}));
  }

  /// -> z [S, H, T, D] in the dtype of q: the attention output before the output projection.
  virtual at::Tensor attention(const AttentionInput& input) = 0;

  /// The feed-forward part without its residual: x [S, T, hidden_size] -> same shape.
  virtual at::Tensor ffn(int64_t /*layer*/, const at::Tensor& x,
                         const std::function<at::Tensor(const at::Tensor&)>& mlp) {
    return mlp(x);
  }

  /// The layer's router's choice for the rows that its feed-forward part computed: [S, T,
  /// per_token], or fewer rows if `ffn` took some from earlier passes. Not called for a layer
  /// without experts.
  virtual void routed(int64_t /*layer*/, const RouterChoice& /*choice*/) {}

  /// What enters a layer instead of this residual stream, same shape; undefined: nothing else.
  virtual at::Tensor patched_hidden(int64_t /*layer*/, const at::Tensor& /*hidden*/) { return {}; }

  /// The residual stream [S, T, hidden_size] that enters a layer (TransformerLens
  /// `hook_resid_pre`).
  virtual void before_layer(int64_t /*layer*/, const at::Tensor& /*hidden*/) {}
};

}  // namespace blockscope
