#include "probe/model/block_diffusion_model.h"

#include <ATen/ATen.h>

#include <tuple>
#include <utility>

#include "decode_record/base/error.h"
#include "probe/checkpoint/family_table.h"
#include "probe/checkpoint/rope.h"
#include "probe/model/device.h"
#include "probe/model/feed_forward.h"

namespace blockscope {

BlockDiffusionModel::BlockDiffusionModel(ModelConfig config, WeightMap weights)
    : config_(std::move(config)), weights_(std::move(weights)) {
  const WeightNames& names = family_of(config_).weights;
  norm_ = norm_of(names.norm);
  if (!config_.draft || config_.draft->own_vocabulary) {
    embed_ = weight(names.embed);
    lm_head_ = Linear(config_.tie_word_embeddings ? embed_ : weight(names.lm_head));
  }
  for (int64_t index = 0; index < config_.num_layers; ++index) {
    const std::string prefix = names.layer_prefix(index);
    const auto swiglu = [&](const std::string& name) {
      const auto part = [&](const std::string& which) {
        return Linear(weight(name + which + ".weight"));
      };
      return SwiGlu{part(names.gate), part(names.up), part(names.down)};
    };
    Layer layer;
    layer.input_norm = norm_of(prefix + names.input_norm + ".weight");
    layer.post_norm = norm_of(prefix + names.post_norm + ".weight");
    layer.attention = attention_of(prefix);
    const std::string mlp = prefix + names.mlp;
    if (config_.moe && config_.moe->sparse[static_cast<size_t>(index)]) {
      ExpertMixture mixture;
      const at::Tensor router = weight(mlp + "gate.weight");
      mixture.router = Linear(config_.moe->sigmoid ? router.to(at::kFloat) : router);
      mixture.config = *config_.moe;
      if (config_.moe->sigmoid) mixture.bias = weight(mlp + "gate.expert_bias");
      if (config_.moe->shared_size > 0) mixture.shared = swiglu(mlp + "shared_experts.");
      for (int64_t e = 0; e < config_.moe->num_experts; ++e) {
        mixture.experts.push_back(swiglu(mlp + "experts." + std::to_string(e) + "."));
      }
      layer.feed_forward = std::move(mixture);
    } else {
      layer.feed_forward = swiglu(mlp);
    }
    layers_.push_back(std::move(layer));
  }
  scale_rope(config_.max_position_embeddings);
  for (const auto& [name, tensor] : weights_)
    weight_bytes_ += static_cast<int64_t>(tensor.nbytes());
}

RmsNorm BlockDiffusionModel::norm_of(const std::string& name) const {
  return {weight(name), config_.rms_norm_eps, family_of(config_).norm_weight_first};
}

AttentionLayer BlockDiffusionModel::attention_of(const std::string& prefix) const {
  const WeightNames& names = family_of(config_).weights;
  const auto part = [&](const std::string& name, const char* suffix) {
    return prefix + name + suffix;
  };
  AttentionLayer layer;
  layer.num_heads = config_.num_heads;
  layer.num_kv_heads = config_.num_kv_heads;
  layer.head_dim = config_.head_dim;
  const auto projections = [&](const char* suffix) {
    if (names.qkv.empty()) {
      return std::tuple{weight(part(names.q, suffix)), weight(part(names.k, suffix)),
                        weight(part(names.v, suffix))};
    }
    const at::Tensor rows = weight(part(names.qkv, suffix));
    const int64_t query = config_.num_heads * config_.head_dim;
    const int64_t key = config_.num_kv_heads * config_.head_dim;
    return std::tuple{rows.narrow(0, 0, query), rows.narrow(0, query, key),
                      rows.narrow(0, query + key, key)};
  };
  const auto [q, k, v] = projections(".weight");
  std::tuple<at::Tensor, at::Tensor, at::Tensor> bias;
  if (config_.attention_bias) bias = projections(".bias");
  layer.q_proj = Linear(q, std::get<0>(bias));
  layer.k_proj = Linear(k, std::get<1>(bias));
  layer.v_proj = Linear(v, std::get<2>(bias));
  layer.o_proj =
      Linear(weight(part(names.o, ".weight")),
             config_.attention_output_bias ? weight(part(names.o, ".bias")) : at::Tensor());
  if (config_.qk_norm) {
    layer.q_norm = norm_of(part(names.q_norm, ".weight"));
    layer.k_norm = norm_of(part(names.k_norm, ".weight"));
  }
  layer.rotate_in_float32 = config_.rope_in_float32;
  return layer;
}

BlockDiffusionModel BlockDiffusionModel::packed() && {
  weights_.clear();  // frees every weight as soon as its packed form exists
  for (Layer& layer : layers_) {
    layer.attention.pack();
    std::visit([](auto& part) { part.pack(); }, layer.feed_forward);
  }
  if (has_vocabulary()) lm_head_.pack();
  if (config_.tie_word_embeddings && lm_head_.packed()) {
    weight_bytes_ += static_cast<int64_t>(embed_.nbytes());
  }
  return std::move(*this);
}

BlockDiffusionModel BlockDiffusionModel::for_longest_sequence(int64_t length) const {
  BlockDiffusionModel model = *this;
  model.scale_rope(length);
  return model;
}

BlockDiffusionModel BlockDiffusionModel::with_low_rank(
    const std::map<std::string, LowRank>& parts) const {
  BlockDiffusionModel model = *this;
  const WeightNames& names = family_of(config_).weights;
  for (int64_t index = 0; index < config_.num_layers; ++index) {
    AttentionLayer& layer = model.layers_[static_cast<size_t>(index)].attention;
    for (const auto& [name, linear] :
         {std::pair{&names.q, &layer.q_proj}, std::pair{&names.k, &layer.k_proj},
          std::pair{&names.v, &layer.v_proj}, std::pair{&names.o, &layer.o_proj}}) {
      const auto found = parts.find(names.layer_prefix(index) + *name + ".weight");
      if (found != parts.end()) linear->add(found->second);
    }
  }
  return model;
}

void BlockDiffusionModel::scale_rope(int64_t longest_sequence) {
  const RopeFrequencies rope = rope_inverse_frequencies(config_, longest_sequence);
  inverse_frequencies_ = at::tensor(rope.inv_freq, at::kDouble).to(device(), at::kFloat);
  rope_attention_factor_ = rope.attention_factor;
}

at::Tensor BlockDiffusionModel::weight(const std::string& name) const {
  const auto found = weights_.find(name);
  if (found == weights_.end()) {
    throw CheckpointError("weights: expected tensor " + name +
                          ", got none. HINT: the checkpoint's tensors do not fit its config.json");
  }
  return found->second;
}

at::ScalarType BlockDiffusionModel::dtype() const { return norm_.weight.scalar_type(); }

at::Device BlockDiffusionModel::device() const { return norm_.weight.device(); }

RotaryRows BlockDiffusionModel::rotary_rows(const at::Tensor& host_positions) const {
  const at::Tensor positions = on_device(host_positions, device());
  // Angles in float32 as the official code has them; the cast to the compute dtype comes last.
  const at::Tensor angles = positions.to(at::kFloat).unsqueeze(-1) * inverse_frequencies_;
  const at::Tensor full = at::cat({angles, angles}, -1).unsqueeze(1);  // [S, 1, T, D]
  const at::ScalarType type = config_.rope_in_float32 ? at::kFloat : dtype();
  RotaryRows rows{(full.cos() * rope_attention_factor_).to(type),
                  (full.sin() * rope_attention_factor_).to(type)};
  if (const RopeConfig& rope = config_.rope; rope.query_scaling_beta != 0.0) {
    const auto length = static_cast<double>(rope.original_max_position_embeddings);
    const at::Tensor stretches = (positions.to(at::kFloat) / length).floor();
    const at::Tensor scale = 1.0 + rope.query_scaling_beta * (1.0 + stretches).log();
    rows.query_scale = scale.unsqueeze(1).unsqueeze(-1).to(dtype());
  }
  return rows;
}

at::Tensor BlockDiffusionModel::embed(const at::Tensor& tokens) const {
  return at::embedding(embed_, on_device(tokens, device()));
}

at::Tensor BlockDiffusionModel::forward(const at::Tensor& tokens, const at::Tensor& positions,
                                        ForwardSeams& seams) const {
  return forward_embedded(embed(tokens), positions, seams);
}

at::Tensor BlockDiffusionModel::forward_embedded(at::Tensor hidden, const at::Tensor& positions,
                                                 ForwardSeams& seams) const {
  const RotaryRows rotary = rotary_rows(positions);
  at::Tensor normed = layers_.empty() ? norm_(hidden) : layers_.front().input_norm(hidden);
  for (int64_t index = 0; index < config_.num_layers; ++index) {
    const Layer& layer = layers_[static_cast<size_t>(index)];
    const bool last = index + 1 == config_.num_layers;
    if (at::Tensor patched = seams.patched_hidden(index, hidden); patched.defined()) {
      hidden = std::move(patched);
      normed = layer.input_norm(hidden);
    }
    seams.before_layer(index, hidden);
    const at::Tensor attended = seams.attention_block(index, layer.attention, normed, rotary);
    if (last) {
      if (const auto needed = seams.needed_rows()) {
        hidden = hidden.index_select(1, on_device(*needed, device()));
      }
      if (hidden.size(1) == 0) return hidden;
    }
    auto [with_attention, ffn_input] = layer.post_norm.of_sum(hidden, attended);
    const RouterListener heard = [&](const RouterChoice& choice) { seams.routed(index, choice); };
    const at::Tensor made = seams.ffn(
        index, ffn_input, [&](const at::Tensor& x) { return apply(layer.feed_forward, x, heard); });
    const RmsNorm& next = last ? norm_ : layers_[static_cast<size_t>(index) + 1].input_norm;
    SumAndNorm behind = next.of_sum(with_attention, made);
    hidden = std::move(behind.sum);
    normed = std::move(behind.norm);
  }
  return normed;
}

at::Tensor BlockDiffusionModel::logits(const at::Tensor& hidden) const { return lm_head_(hidden); }

}  // namespace blockscope
