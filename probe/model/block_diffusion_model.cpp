#include "probe/model/block_diffusion_model.h"

#include <ATen/ATen.h>

#include <cmath>
#include <utility>

#include "decode_record/error.h"
#include "probe/checkpoint/rope.h"
#include "probe/model/feed_forward.h"

namespace blockscope {
namespace {

/// Root mean square norm over the last dimension, in float32 inside (SDAR multiplies by the weight
/// before casting back, Qwen3 after; equal in float32).
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps,
                    bool weight_before_cast) {
  if (x.scalar_type() == at::kFloat) return at::rms_norm(x, weight.sizes(), weight, eps);
  const at::Tensor x32 = x.to(at::kFloat);
  const at::Tensor normed = x32 * at::rsqrt(x32.square().mean(-1, true) + eps);
  if (weight_before_cast) return (normed * weight.to(at::kFloat)).to(x.scalar_type());
  return normed.to(x.scalar_type()) * weight;
}

/// Rotate-half RoPE over all channels: x [S, heads, T, D], cos and sin [S, 1, T, D] in x's dtype.
at::Tensor apply_rope(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  const int64_t half = x.size(-1) / 2;
  const at::Tensor rotated = at::cat({-x.narrow(-1, half, half), x.narrow(-1, 0, half)}, -1);
  return x * cos + rotated * sin;
}

}  // namespace

BlockDiffusionModel::BlockDiffusionModel(ModelConfig config, WeightMap weights)
    : config_(std::move(config)), weights_(std::move(weights)) {
  norm_weight_before_cast_ = config_.model_type.starts_with("sdar");
  embed_ = weight("model.embed_tokens.weight");
  norm_ = weight("model.norm.weight");
  lm_head_ = config_.tie_word_embeddings ? embed_ : weight("lm_head.weight");
  for (int64_t index = 0; index < config_.num_layers; ++index) {
    const std::string prefix = "model.layers." + std::to_string(index) + ".";
    const std::string attn = prefix + "self_attn.";
    const auto swiglu = [&](const std::string& name) {
      return SwiGlu{weight(name + "gate_proj.weight"), weight(name + "up_proj.weight"),
                    weight(name + "down_proj.weight")};
    };
    Layer layer;
    layer.input_norm = weight(prefix + "input_layernorm.weight");
    layer.post_attention_norm = weight(prefix + "post_attention_layernorm.weight");
    layer.q_proj = weight(attn + "q_proj.weight");
    layer.k_proj = weight(attn + "k_proj.weight");
    layer.v_proj = weight(attn + "v_proj.weight");
    layer.o_proj = weight(attn + "o_proj.weight");
    if (config_.attention_bias) {
      layer.q_bias = weight(attn + "q_proj.bias");
      layer.k_bias = weight(attn + "k_proj.bias");
      layer.v_bias = weight(attn + "v_proj.bias");
    }
    if (config_.attention_output_bias) layer.o_bias = weight(attn + "o_proj.bias");
    if (config_.qk_norm) {
      layer.q_norm = weight(attn + "q_norm.weight");
      layer.k_norm = weight(attn + "k_norm.weight");
    }
    const std::string mlp = prefix + "mlp.";
    if (config_.moe && config_.moe->sparse[static_cast<size_t>(index)]) {
      ExpertMixture mixture;
      mixture.router = weight(mlp + "gate.weight");
      for (int64_t e = 0; e < config_.moe->num_experts; ++e) {
        mixture.experts.push_back(swiglu(mlp + "experts." + std::to_string(e) + "."));
      }
      mixture.per_token = config_.moe->experts_per_token;
      mixture.normalise = config_.moe->normalise;
      layer.feed_forward = std::move(mixture);
    } else {
      layer.feed_forward = swiglu(mlp);
    }
    layers_.push_back(std::move(layer));
  }
  scale_rope(config_.max_position_embeddings);
}

BlockDiffusionModel BlockDiffusionModel::for_longest_sequence(int64_t length) const {
  BlockDiffusionModel model = *this;
  model.scale_rope(length);
  return model;
}

void BlockDiffusionModel::scale_rope(int64_t longest_sequence) {
  const RopeFrequencies rope = rope_inverse_frequencies(config_, longest_sequence);
  inverse_frequencies_ = at::tensor(rope.inv_freq, at::kDouble).to(embed_.device(), at::kFloat);
  rope_attention_factor_ = rope.attention_factor;
}

at::Tensor BlockDiffusionModel::weight(const std::string& name) const {
  const auto found = weights_.find(name);
  if (found == weights_.end()) {
    throw CheckpointError("weights: expected tensor " + name +
                          ", got none. HINT: the checkpoint's config.json and tensors disagree");
  }
  return found->second;
}

at::ScalarType BlockDiffusionModel::dtype() const { return embed_.scalar_type(); }

at::Tensor BlockDiffusionModel::attend(int64_t index, const at::Tensor& x, const at::Tensor& cos,
                                       const at::Tensor& sin, ForwardSeams& seams) const {
  const Layer& layer = layers_[static_cast<size_t>(index)];
  const int64_t sequences = x.size(0);
  const int64_t length = x.size(1);
  const auto heads_of = [&](const at::Tensor& flat, int64_t heads) {
    return flat.view({sequences, length, heads, config_.head_dim}).transpose(1, 2);
  };
  const bool before_cast = norm_weight_before_cast_;
  at::Tensor q = heads_of(at::linear(x, layer.q_proj, layer.q_bias), config_.num_heads);
  at::Tensor k = heads_of(at::linear(x, layer.k_proj, layer.k_bias), config_.num_kv_heads);
  const at::Tensor v = heads_of(at::linear(x, layer.v_proj, layer.v_bias), config_.num_kv_heads);
  if (layer.q_norm.defined()) {
    q = rms_norm(q, layer.q_norm, config_.rms_norm_eps, before_cast);
    k = rms_norm(k, layer.k_norm, config_.rms_norm_eps, before_cast);
  }
  q = apply_rope(q, cos, sin);
  k = apply_rope(k, cos, sin);
  const double scale = 1.0 / std::sqrt(static_cast<double>(config_.head_dim));
  const at::Tensor z = seams.attention({index, q, k, v, scale});
  const at::Tensor flat =
      z.transpose(1, 2).reshape({sequences, length, config_.num_heads * config_.head_dim});
  return at::linear(flat, layer.o_proj, layer.o_bias);
}

at::Tensor BlockDiffusionModel::forward(const at::Tensor& tokens, const at::Tensor& positions,
                                        ForwardSeams& seams) const {
  at::Tensor hidden = at::embedding(embed_, tokens);
  at::Tensor rows = positions;
  seams.begin_forward(hidden, rows);
  // Angles in float32 as the official code has them; the cast to the compute dtype comes last.
  const at::Tensor angles = rows.to(at::kFloat).unsqueeze(-1) * inverse_frequencies_;
  const at::Tensor full = at::cat({angles, angles}, -1).unsqueeze(1);  // [S, 1, T, D]
  const at::Tensor cos = (full.cos() * rope_attention_factor_).to(hidden.scalar_type());
  const at::Tensor sin = (full.sin() * rope_attention_factor_).to(hidden.scalar_type());
  const bool before_cast = norm_weight_before_cast_;
  for (int64_t index = 0; index < config_.num_layers; ++index) {
    const Layer& layer = layers_[static_cast<size_t>(index)];
    seams.before_layer(index, hidden);
    hidden = hidden + attend(index,
                             rms_norm(hidden, layer.input_norm, config_.rms_norm_eps, before_cast),
                             cos, sin, seams);
    hidden = hidden + seams.ffn(index,
                                rms_norm(hidden, layer.post_attention_norm, config_.rms_norm_eps,
                                         before_cast),
                                layer.feed_forward);
  }
  hidden = rms_norm(hidden, norm_, config_.rms_norm_eps, before_cast);
  seams.end_forward(hidden);
  return hidden;
}

at::Tensor BlockDiffusionModel::logits(const at::Tensor& hidden) const {
  return at::linear(hidden, lm_head_);
}

}  // namespace blockscope
