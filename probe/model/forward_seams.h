// The three seams of a forward pass (d2Cache's hooks: model forward, attention, FFN). The model
// knows only this interface; attention policies, KV caches, the trainer's masked attention and
// later token-selecting caches (dLLM-Cache, d2Cache) live behind it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

namespace blockscope {

/// What a layer hands to its attention: after QK-norm and RoPE.
struct AttentionInput {
  int64_t layer = 0;
  const at::Tensor& q;  // [S, H, T, D]
  const at::Tensor& k;  // [S, K, T, D]
  const at::Tensor& v;  // [S, K, T, D]
  double scale = 1.0;   // softmax scale, 1/sqrt(D)
};

/// S sequences, T positions of this pass, H query heads, K KV heads, D head_dim.
class ForwardSeams {
 public:
  virtual ~ForwardSeams() = default;

  /// Before the first layer. May narrow `hidden` [S, T, hidden_size] and `positions` [S, T] to the
  /// positions that are recomputed (a token-selecting cache); the default recomputes all.
  virtual void begin_forward(at::Tensor& /*hidden*/, at::Tensor& /*positions*/) {}

  /// -> z [S, H, T, D] in the dtype of q: the attention output before the output projection.
  virtual at::Tensor attention(const AttentionInput& input) = 0;

  /// The feed-forward part without its residual: x [S, T, hidden_size] -> same shape.
  virtual at::Tensor ffn(int64_t /*layer*/, const at::Tensor& x,
                         const std::function<at::Tensor(const at::Tensor&)>& mlp) {
    return mlp(x);
  }

  /// The residual stream [S, T, hidden_size] that enters a layer (TransformerLens
  /// `hook_resid_pre`).
  virtual void before_layer(int64_t /*layer*/, const at::Tensor& /*hidden*/) {}

  /// After the final norm: may restore `hidden` to all positions.
  virtual void end_forward(at::Tensor& /*hidden*/) {}
};

}  // namespace blockscope
