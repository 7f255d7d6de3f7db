#include "probe/model/block_diffusion_model.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

#include "decode_record/base/error.h"
#include "probe/checkpoint/family_table.h"
#include "probe/checkpoint/gemma_config.h"
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
    Layer layer;
    layer.input_norm = norm_of(prefix + names.input_norm + ".weight");
    layer.post_norm = norm_of(prefix + names.post_norm + ".weight");
    layer.attention = attention_of(index);
    layer.attention_conv = conv_of(names.layer_prefix(index) + kAttentionConv);
    layer.mlp_conv = conv_of(names.layer_prefix(index) + kMlpConv);
    layer.feed_forward = feed_forward_of(index);
    if (config_.gemma) add_gemma_parts(index, layer);
    const LayerShape shape = config_.layer(index);
    const auto same = std::ranges::find_if(ropes_, [&](const Rope& rope) {
      return rope.config == shape.rope && rope.head_dim == shape.head_dim;
    });
    layer.rope = static_cast<size_t>(same - ropes_.begin());
    if (same == ropes_.end()) ropes_.push_back({shape.rope, shape.head_dim});
    layers_.push_back(std::move(layer));
  }
  if (config_.gemma) {
    const std::string& prefix = kSelfConditioning;
    self_conditioning_ = {norm_of(prefix + "pre_norm.weight"), plain_norm(config_.hidden_size),
                          mlp_of(prefix)};
  }
  scale_rope(config_.max_position_embeddings);
  for (const auto& [name, tensor] : weights_)
    weight_bytes_ += static_cast<int64_t>(tensor.nbytes());
}

RmsNorm BlockDiffusionModel::norm_of(const std::string& name) const {
  return {weight(name), config_.rms_norm_eps, family_of(config_).norm_weight_first};
}

RmsNorm BlockDiffusionModel::plain_norm(int64_t width) const {
  return {at::ones({width}, norm_.weight.options()), config_.rms_norm_eps, true};
}

GatedMlp BlockDiffusionModel::mlp_of(const std::string& name) const {
  const WeightNames& names = family_of(config_).weights;
  const auto part = [&](const std::string& which) {
    return Linear(weight(name + which + ".weight"));
  };
  return {part(names.gate), part(names.up), part(names.down),
          config_.gemma ? Activation::gelu_tanh : Activation::silu};
}

FeedForward BlockDiffusionModel::feed_forward_of(int64_t index) const {
  const WeightNames& names = family_of(config_).weights;
  const std::string mlp = names.layer_prefix(index) + names.mlp;
  if (config_.gemma || !config_.moe || !config_.moe->sparse[static_cast<size_t>(index)]) {
    return mlp_of(mlp);
  }
  ExpertMixture mixture;
  const at::Tensor router = weight(mlp + "gate.weight");
  mixture.router = Linear(config_.moe->sigmoid ? router.to(at::kFloat) : router);
  mixture.config = *config_.moe;
  if (config_.moe->sigmoid) mixture.bias = weight(mlp + "gate.expert_bias");
  if (config_.moe->shared_size > 0) mixture.shared = mlp_of(mlp + "shared_experts.");
  for (int64_t e = 0; e < config_.moe->num_experts; ++e) {
    mixture.experts.push_back(mlp_of(mlp + "experts." + std::to_string(e) + "."));
  }
  return mixture;
}

/// Norms, factors and experts that only DiffusionGemma's layers have. Its experts are two tensors
/// for all of them: gate and up [E, 2 I, hidden], down [E, hidden, I].
void BlockDiffusionModel::add_gemma_parts(int64_t index, Layer& layer) const {
  const std::string prefix = family_of(config_).weights.layer_prefix(index);
  const auto norm = [&](const char* name) { return norm_of(prefix + name + ".weight"); };
  layer.attention_norm = norm("post_attention_layernorm");
  layer.canvas_scalar = weight(prefix + "layer_scalar");
  layer.scalar = weight(fmt::format("{}{}.layer_scalar", kEncoderLayers, index));
  MlpAndExperts both;
  both.mlp = std::get<GatedMlp>(layer.feed_forward);
  both.mlp_norm = norm("post_feedforward_layernorm_1");
  both.expert_norm = norm("post_feedforward_layernorm_2");
  both.out_norm = norm("post_feedforward_layernorm");
  both.expert_input = norm("pre_feedforward_layernorm_2");
  both.router_input = plain_norm(config_.hidden_size);
  both.router_input.weight =
      weight(prefix + "router.scale") * (1.0 / std::sqrt(static_cast<double>(config_.hidden_size)));
  both.experts.config = *config_.moe;
  both.experts.router = Linear(weight(prefix + "router.proj.weight"));
  both.experts.factor = weight(prefix + "router.per_expert_scale").to(at::kFloat);
  const at::Tensor gate_up = weight(prefix + "experts.gate_up_proj");
  const at::Tensor down = weight(prefix + "experts.down_proj");
  const int64_t width = config_.moe->intermediate_size;
  for (int64_t e = 0; e < config_.moe->num_experts; ++e) {
    both.experts.experts.push_back({Linear(gate_up.select(0, e).narrow(0, 0, width)),
                                    Linear(gate_up.select(0, e).narrow(0, width, width)),
                                    Linear(down.select(0, e)), Activation::gelu_tanh});
  }
  layer.feed_forward = std::move(both);
}

AttentionLayer BlockDiffusionModel::attention_of(int64_t index) const {
  const WeightNames& names = family_of(config_).weights;
  const std::string prefix = names.layer_prefix(index);
  const LayerShape shape = config_.layer(index);
  const auto part = [&](const std::string& name, const char* suffix) {
    return prefix + name + suffix;
  };
  AttentionLayer layer;
  layer.num_heads = config_.num_heads;
  layer.num_kv_heads = shape.num_kv_heads;
  layer.head_dim = shape.head_dim;
  layer.values_are_keys = shape.values_are_keys;
  const auto projections = [&](const char* suffix) {
    if (names.qkv.empty()) {
      return std::tuple{weight(part(names.q, suffix)), weight(part(names.k, suffix)),
                        shape.values_are_keys ? at::Tensor() : weight(part(names.v, suffix))};
    }
    const at::Tensor rows = weight(part(names.qkv, suffix));
    const int64_t query = config_.num_heads * shape.head_dim;
    const int64_t key = shape.num_kv_heads * shape.head_dim;
    return std::tuple{rows.narrow(0, 0, query), rows.narrow(0, query, key),
                      rows.narrow(0, query + key, key)};
  };
  const auto [q, k, v] = projections(".weight");
  std::tuple<at::Tensor, at::Tensor, at::Tensor> bias;
  if (config_.attention_bias) bias = projections(".bias");
  layer.q_proj = Linear(q, std::get<0>(bias));
  layer.k_proj = Linear(k, std::get<1>(bias));
  if (v.defined()) layer.v_proj = Linear(v, std::get<2>(bias));
  layer.o_proj =
      Linear(weight(part(names.o, ".weight")),
             config_.attention_output_bias ? weight(part(names.o, ".bias")) : at::Tensor());
  if (config_.qk_norm) {
    layer.q_norm = norm_of(part(names.q_norm, ".weight"));
    layer.k_norm = norm_of(part(names.k_norm, ".weight"));
  }
  if (config_.gemma) {
    layer.v_norm = plain_norm(shape.head_dim);
    layer.softmax_scale = 1.0;
  }
  layer.rotate_in_float32 = config_.rope_in_float32;
  return layer;
}

GroupedConv BlockDiffusionModel::conv_of(const std::string& name) const {
  if (!config_.draft || !config_.draft->second) return {};
  return {weight(name + ".base_kernel"), weight(name + ".kernel_projection.weight"),
          config_.draft->second->conv_group};
}

bool BlockDiffusionModel::waits_for_router() const {
  return std::any_of(layers_.begin(), layers_.end(), [](const Layer& layer) {
    const auto* mixture = std::get_if<ExpertMixture>(&layer.feed_forward);
    const auto* both = std::get_if<MlpAndExperts>(&layer.feed_forward);
    if (both != nullptr) mixture = &both->experts;
    return mixture != nullptr && mixture->grouped == nullptr;
  });
}

BlockDiffusionModel BlockDiffusionModel::packed() && {
  weights_.clear();  // frees every weight as soon as its packed form exists
  for (Layer& layer : layers_) {
    layer.attention.pack();
    layer.attention_conv.pack();
    layer.mlp_conv.pack();
    std::visit([](auto& part) { part.pack(); }, layer.feed_forward);
  }
  if (config_.gemma) self_conditioning_.mlp.pack();
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
  for (Rope& rope : ropes_) {
    const RopeFrequencies made =
        rope_inverse_frequencies(rope.config, rope.head_dim, longest_sequence);
    rope.inverse_frequencies = at::tensor(made.inv_freq, at::kDouble).to(device(), at::kFloat);
    rope.attention_factor = made.attention_factor;
  }
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

RotaryRows BlockDiffusionModel::rotary_rows(const at::Tensor& positions, int64_t layer) const {
  return rotation(ropes_[layers_[static_cast<size_t>(layer)].rope], positions);
}

RotaryRows BlockDiffusionModel::rotation(const Rope& rope, const at::Tensor& host_positions) const {
  const at::Tensor positions = on_device(host_positions, device());
  // Angles in float32 as the official code has them; the cast to the compute dtype comes last.
  const at::Tensor angles = positions.to(at::kFloat).unsqueeze(-1) * rope.inverse_frequencies;
  const at::Tensor full = at::cat({angles, angles}, -1).unsqueeze(1);  // [S, 1, T, D]
  const at::ScalarType type = config_.rope_in_float32 ? at::kFloat : dtype();
  RotaryRows rows{(full.cos() * rope.attention_factor).to(type),
                  (full.sin() * rope.attention_factor).to(type)};
  if (rope.config.query_scaling_beta != 0.0) {
    const auto length = static_cast<double>(rope.config.original_max_position_embeddings);
    const at::Tensor stretches = (positions.to(at::kFloat) / length).floor();
    const at::Tensor scale = 1.0 + rope.config.query_scaling_beta * (1.0 + stretches).log();
    rows.query_scale = scale.unsqueeze(1).unsqueeze(-1).to(dtype());
  }
  return rows;
}

at::Tensor BlockDiffusionModel::embed(const at::Tensor& tokens) const {
  const at::Tensor rows = at::embedding(embed_, on_device(tokens, device()));
  return config_.gemma ? rows * embed_scale() : rows;
}

/// The factor as transformers has it, rounded to the embedding's dtype.
at::Tensor BlockDiffusionModel::embed_scale() const {
  return at::scalar_tensor(config_.gemma->embed_scale, embed_.options());
}

at::Tensor BlockDiffusionModel::embed_canvas(const at::Tensor& tokens,
                                             const at::Tensor& before) const {
  at::Tensor rows = embed(tokens);
  if (before.defined()) {
    const at::Tensor probability = at::softmax(before, -1, at::kFloat).to(embed_.scalar_type());
    const at::Tensor soft = at::matmul(probability, embed_) * embed_scale();
    rows = rows + self_conditioning_.mlp(self_conditioning_.input_norm(soft));
  }
  return self_conditioning_.output_norm(rows);
}

at::Tensor BlockDiffusionModel::forward(const at::Tensor& tokens, const at::Tensor& positions,
                                        ForwardSeams& seams) const {
  return forward_embedded(embed(tokens), positions, seams);
}

at::Tensor BlockDiffusionModel::forward_embedded(at::Tensor hidden, const at::Tensor& positions,
                                                 ForwardSeams& seams) const {
  std::vector<RotaryRows> rotations;
  for (const Rope& rope : ropes_) rotations.push_back(rotation(rope, positions));
  at::Tensor normed = layers_.empty() ? norm_(hidden) : layers_.front().input_norm(hidden);
  for (int64_t index = 0; index < config_.num_layers; ++index) {
    const Layer& layer = layers_[static_cast<size_t>(index)];
    const bool last = index + 1 == config_.num_layers;
    if (at::Tensor patched = seams.patched_hidden(index, hidden); patched.defined()) {
      hidden = std::move(patched);
      normed = layer.input_norm(hidden);
    }
    seams.before_layer(index, hidden);
    at::Tensor attended = layer.attention_conv.around(normed, [&](const at::Tensor& x) {
      return seams.attention_block(index, layer.attention, x, rotations[layer.rope]);
    });
    if (layer.attention_norm.defined()) attended = layer.attention_norm(attended);
    if (last) {
      if (const auto needed = seams.needed_rows()) {
        hidden = hidden.index_select(1, kept_on(*needed, device()));
      }
      if (hidden.size(1) == 0) return hidden;
    }
    auto [with_attention, ffn_input] = layer.post_norm.of_sum(hidden, attended);
    const RouterListener heard = [&](const RouterChoice& choice) { seams.routed(index, choice); };
    const at::Tensor& residual = with_attention;
    const at::Tensor made = seams.ffn(index, ffn_input, [&](const at::Tensor& rows) {
      return layer.mlp_conv.around(
          rows, [&](const at::Tensor& x) { return apply(layer.feed_forward, x, residual, heard); });
    });
    const RmsNorm& next = last ? norm_ : layers_[static_cast<size_t>(index) + 1].input_norm;
    if (layer.scalar.defined()) {
      hidden = (residual + made) * (seams.on_canvas() ? layer.canvas_scalar : layer.scalar);
      normed = next(hidden);
      continue;
    }
    SumAndNorm behind = next.of_sum(residual, made);
    hidden = std::move(behind.sum);
    normed = std::move(behind.norm);
  }
  return normed;
}

at::Tensor BlockDiffusionModel::logits(const at::Tensor& hidden) const {
  at::Tensor logits = lm_head_(hidden);
  if (!config_.gemma) return logits;
  const double cap = config_.gemma->logit_softcap;
  return (logits.to(at::kFloat) / cap).tanh_().mul_(cap);
}

}  // namespace blockscope
