// DiffusionGemma (transformers `configuration_diffusion_gemma.py`, `modeling_diffusion_gemma.py`):
// Gemma 4's layers as a causal encoder and as a canvas's decoder, with one set of weights. The keys
// of the text model are in `text_config`. The vision tower is left out, because prompts are text.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>

#include "decode_record/base/error.h"
#include "probe/checkpoint/config_limits.h"
#include "probe/checkpoint/family_table.h"

namespace blockscope {
namespace {

constexpr double kMaxCap = 1e6;
constexpr double kLeastTemperature = 1e-6;
constexpr std::int64_t kUsualCanvas = 256;  // if canvas_length is absent
constexpr std::int64_t kGlobalEvery = 6;    // by default, every sixth layer sees all keys

// Keys of the outer object that images or the trainer need, or that text_config decides.
constexpr NeutralKey kOuterKeys[] = {{"vision_config"},
                                     {"boi_token_id"},
                                     {"eoi_token_id"},
                                     {"image_token_id"},
                                     {"vision_soft_tokens_per_image"},
                                     {"dtype"},
                                     {"torch_dtype"},
                                     {"bos_token_id"},
                                     {"eos_token_id"},
                                     {"pad_token_id"},
                                     {"audio_config", "null"}};

JsonObject gemma_shape_keys(const JsonObject& whole) {
  if (const auto inner = whole.optional_object("text_config")) return *inner;
  whole.fail("text_config", "an object with the text model's shape");
}

/// Whether each layer sees all keys, by `layer_types`.
std::vector<bool> global_layers(const JsonObject& keys, std::int64_t num_layers) {
  std::vector<bool> global;
  if (!keys.has("layer_types")) {
    for (std::int64_t i = 1; i <= num_layers; ++i) global.push_back(i % kGlobalEvery == 0);
  } else {
    const nlohmann::json& types = keys.raw().at("layer_types");
    const std::string expected = fmt::format(
        "\"sliding_attention\" or \"full_attention\" for each of the {} layers", num_layers);
    if (!types.is_array() || std::ssize(types) != num_layers) keys.fail("layer_types", expected);
    for (const nlohmann::json& type : types) {
      if (type != "sliding_attention" && type != "full_attention") {
        keys.fail("layer_types", expected, "other layer types are not supported");
      }
      global.push_back(type == "full_attention");
    }
  }
  global.back() = true;  // as transformers forces it
  return global;
}

/// The RoPE of one kind of layer: rope_parameters has an object for each.
RopeConfig gemma_rope(const JsonObject& all, const std::string& kind, std::int64_t head_dim) {
  const auto keys = all.optional_object(kind);
  if (!keys) all.fail(kind, "an object with rope_type and rope_theta");
  RopeConfig rope;
  const std::string type = keys->optional_string("rope_type").value_or("default");
  rope.theta = keys->number("rope_theta", 1.0 + 1e-6, kMaxTheta);
  const double part = keys->optional_number("partial_rotary_factor", 0.0, 1.0).value_or(1.0);
  if (type == "proportional") {
    rope.type = RopeType::kProportional;
    rope.factor = keys->optional_number("factor", 1e-6, kMaxFactor).value_or(1.0);
    // int(part * head_dim // 2) pairs turn.
    rope.rotary_dim =
        2 * static_cast<std::int64_t>(std::floor(part * static_cast<double>(head_dim) / 2.0));
  } else if (type == "default") {
    if (part != 1.0) keys->fail("partial_rotary_factor", "1.0, or rope_type \"proportional\"");
  } else {
    keys->fail("rope_type", "\"default\" or \"proportional\"",
               "other RoPE variants would give wrong logits and are refused");
  }
  for (const std::string& key : keys->unread()) {
    keys->fail(key, fmt::format("no such key for rope type \"{}\"", type));
  }
  return rope;
}

/// The layer that a key of per_layer_config names: "5" or "05".
std::size_t layer_number(const JsonObject& listed, const std::string& name, std::size_t layers) {
  const bool digits = !name.empty() && name.size() <= 6 &&
                      name.find_first_not_of("0123456789") == std::string::npos;
  const std::size_t layer = digits ? std::stoul(name) : layers;
  if (layer >= layers) listed.fail(name, fmt::format("the number of a layer below {}", layers));
  return layer;
}

/// Sizes of the layers that see all keys: `per_layer_config`, or the two older keys.
struct GlobalSizes {
  std::int64_t head_dim = 0, num_kv_heads = 0;
};

GlobalSizes global_sizes(const JsonObject& keys, const ModelConfig& config,
                         const std::vector<bool>& global) {
  const std::int64_t head_dim =
      keys.optional_integer("global_head_dim", 2, kMaxHeadDim).value_or(512);
  const std::int64_t kv_heads =
      keys.optional_integer("num_global_key_value_heads", 1, kMaxHeads).value_or(0);
  GlobalSizes sizes{head_dim, kv_heads > 0 ? kv_heads : config.num_kv_heads};
  const auto listed = keys.optional_object("per_layer_config");
  if (!listed) return sizes;
  // As transformers writes and reads it where all layers have the same sizes.
  if (listed->raw().empty()) return {config.head_dim, config.num_kv_heads};
  std::optional<GlobalSizes> first;
  std::vector<bool> named(global.size(), false);
  for (const auto& [name, value] : listed->raw().items()) {
    const std::size_t layer = layer_number(*listed, name, global.size());
    const auto own = listed->optional_object(name);
    if (!own || !global[layer] || named[layer]) {
      listed->fail(name, "an object for each layer that sees all keys, and for no other layer");
    }
    named[layer] = true;
    const GlobalSizes here{
        own->optional_integer("head_dim", 2, kMaxHeadDim).value_or(config.head_dim),
        own->optional_integer("num_key_value_heads", 1, kMaxHeads).value_or(config.num_kv_heads)};
    for (const std::string& key : own->unread()) {
      own->fail(key, "no such key: only head_dim and num_key_value_heads may differ");
    }
    if (first && (first->head_dim != here.head_dim || first->num_kv_heads != here.num_kv_heads)) {
      listed->fail(name, "the sizes of the other layers that see all keys");
    }
    first = here;
  }
  if (named != global) {
    keys.fail("per_layer_config", "an object for each layer that sees all keys");
  }
  return first.value_or(sizes);
}

MoeConfig gemma_experts(const JsonObject& keys, std::int64_t num_layers) {
  MoeConfig moe;
  moe.num_experts = keys.integer("num_experts", 1, kMaxExperts);
  moe.experts_per_token = keys.integer("top_k_experts", 1, moe.num_experts);
  moe.intermediate_size = keys.integer("moe_intermediate_size", 1, kMaxWidth);
  moe.normalise = true;
  moe.sparse.assign(static_cast<std::size_t>(num_layers), true);
  return moe;
}

void read_gemma_layers(const ConfigFile& file, ModelConfig& config) {
  const JsonObject& keys = file.keys;
  const bool outer = file.whole.optional_boolean("tie_word_embeddings").value_or(true);
  if (!outer || !keys.optional_boolean("tie_word_embeddings").value_or(true)) {
    file.whole.fail("tie_word_embeddings", "true: encoder, decoder and LM head share their weights",
                    "other checkpoints are not supported");
  }
  config.tie_word_embeddings = true;
  keys.require_text("hidden_activation", "gelu_pytorch_tanh");
  if (const auto all = keys.optional_string("use_bidirectional_attention");
      all && *all != "vision") {
    keys.fail("use_bidirectional_attention", "null or \"vision\", which changes images alone",
              "a bidirectional encoder is not supported");
  }
  keys.require_switch(
      "attention_bias", false,
      "encoder and decoder would have biases of their own, which are not supported");
  config.moe = gemma_experts(keys, config.num_layers);
  config.gemma.emplace();
  config.gemma->embed_scale = std::sqrt(static_cast<double>(config.hidden_size));
  const std::string cap = "final_logit_softcapping";
  if (keys.raw().contains(cap) && !keys.has(cap)) {
    keys.fail(cap, "a number: transformers' model divides by it",
              "give the cap, or leave the key out for 30");
  }
  config.gemma->logit_softcap = keys.optional_number(cap, 1e-6, kMaxCap).value_or(30.0);
}

void read_gemma_rope(const ConfigFile& file, ModelConfig& config, std::string& source) {
  const JsonObject& keys = file.keys;
  const std::vector<bool> global = global_layers(keys, config.num_layers);
  const GlobalSizes sizes = global_sizes(keys, config, global);
  if (sizes.head_dim % 2 != 0) keys.fail("global_head_dim", "an even number (RoPE rotates pairs)");
  if (config.num_heads % sizes.num_kv_heads != 0) {
    keys.fail("num_global_key_value_heads",
              fmt::format("a divisor of num_attention_heads ({})", config.num_heads));
  }
  const std::int64_t window = keys.integer("sliding_window", 2, kMaxPositions);
  const auto ropes = keys.optional_object("rope_parameters");
  if (!ropes) keys.fail("rope_parameters", "an object for each kind of layer");
  LayerShape sliding{config.num_kv_heads, config.head_dim, window, false, {}};
  LayerShape full{sizes.num_kv_heads, sizes.head_dim, 0, true,
                  gemma_rope(*ropes, "full_attention", sizes.head_dim)};
  if (std::ranges::count(global, false) > 0) {
    sliding.rope = gemma_rope(*ropes, "sliding_attention", config.head_dim);
  } else {
    ropes->pass_over({"sliding_attention"});
  }
  for (const std::string& key : ropes->unread()) {
    ropes->fail(key, "\"full_attention\" or \"sliding_attention\"");
  }
  for (const bool all_keys : global) config.layer_shapes.push_back(all_keys ? full : sliding);
  const auto largest = [&](std::int64_t LayerShape::*of) {
    return std::ranges::max(config.layer_shapes, {}, of).*of;
  };
  config.head_dim = largest(&LayerShape::head_dim);
  config.num_kv_heads = largest(&LayerShape::num_kv_heads);
  config.rope = full.rope;
  source = "config.json:rope_parameters";
}

/// What generation_config.json says of the steps of a canvas, under the names of the strategy.
void read_canvas_decoding(const JsonObject& file, GemmaConfig& gemma) {
  constexpr double kMost = 1e6;
  const auto add = [&](const char* option, std::optional<double> value) {
    if (value) gemma.strategy_options += fmt::format(",{}={}", option, *value);
  };
  if (const auto sampler = file.optional_object("sampler_config")) {
    sampler->require_text("_cls_name", "EntropyBoundSamplerConfig");
    add("entropy_bound", sampler->number("entropy_bound", 1e-9, kMost));
    for (const std::string& key : sampler->unread()) sampler->fail(key, "no such key");
  }
  const auto t_max = file.optional_number("t_max", kLeastTemperature, kMost);
  const auto t_min = file.optional_number("t_min", 0.0, kMost);
  if (t_max.value_or(0.8) <= t_min.value_or(0.4)) {
    file.fail(t_max ? "t_max" : "t_min", "t_max above t_min (without a key: 0.8 and 0.4)");
  }
  add("t_max", t_max);
  add("t_min", t_min);
  if (const auto stable = file.optional_integer("stability_threshold", 0, kMaxPositions)) {
    gemma.strategy_options += fmt::format(",stable_steps={}", *stable);
  }
  add("stop_entropy", file.optional_number("confidence_threshold", 1e-9, kMost));
  gemma.denoising_steps =
      file.optional_integer("max_denoising_steps", 1, kMaxPositions).value_or(0);
  // A cache changes the speed of transformers' decoding, but a quantised one also its results.
  if (const auto cache = file.optional_string("cache_implementation"); cache == "quantized") {
    file.fail("cache_implementation", "a cache that keeps keys and values as they are");
  }
  file.pass_over({"eos_token_id", "bos_token_id", "pad_token_id", "max_new_tokens", "max_length",
                  "return_dict_in_generate", "cache_config", "disable_compile", "_commit_hash",
                  "_from_model_config", "transformers_version"});
  for (const std::string& key : file.unread()) {
    file.fail(key, "no such key: DiffusionGemmaGenerationConfig has none of this name");
  }
}

void finish_gemma(const ConfigFile& file, ModelConfig& config) {
  if (file.generation) read_canvas_decoding(*file.generation, *config.gemma);
  const std::string key = "canvas_length";
  const auto canvas = file.whole.optional_integer(key, 1, config.max_position_embeddings);
  if (!config.block_length) {
    config.block_length = canvas ? Resolved<std::int64_t>{*canvas, "config.json:" + key}
                                 : Resolved<std::int64_t>{kUsualCanvas, std::string(kTableSource)};
  }
  if (config.mask_token_id) {
    throw UsageError(
        fmt::format("mask token id from {}: a canvas of {} holds random tokens instead of masks. "
                    "HINT: leave it "
                    "out; replay traces of canvases only",
                    config.mask_token_id->source, file.family.name));
  }
  refuse_unread_keys(file.whole, kOuterKeys);
}

void record_gemma(const ConfigFile& file, ModelConfig& config) {
  nlohmann::json head_dims, kv_heads, windows, thetas, rotating;
  for (const LayerShape& layer : config.layer_shapes) {
    head_dims.push_back(layer.head_dim);
    kv_heads.push_back(layer.num_kv_heads);
    windows.push_back(layer.window);
    thetas.push_back(layer.rope.theta);
    rotating.push_back(layer.rope.rotary_dim > 0 ? layer.rope.rotary_dim : layer.head_dim);
  }
  add_resolved(config, "layer_head_dim", head_dims, "config.json:layer_types, global_head_dim");
  add_resolved(config, "layer_kv_heads", kv_heads,
               "config.json:layer_types, num_global_key_value_heads");
  add_resolved(config, "layer_window", windows, "config.json:layer_types, sliding_window");
  add_resolved(config, "layer_rope_theta", thetas, "config.json:layer_types, rope_parameters");
  add_resolved(config, "layer_rotary_dim", rotating, "config.json:layer_types, rope_parameters");
  add_resolved(config, "logit_softcap", config.gemma->logit_softcap,
               file.source("final_logit_softcapping"));
  // Only if it says so: these entries are part of the digest of calibration files.
  if (const std::string& options = config.gemma->strategy_options; !options.empty()) {
    add_resolved(config, "canvas_strategy", "canvas" + options, "generation_config.json");
  }
  if (config.gemma->denoising_steps > 0) {
    add_resolved(config, "canvas_denoising_steps", config.gemma->denoising_steps,
                 "generation_config.json:max_denoising_steps");
  }
}

/// All tensors: one set of weights for both modes, but two factors for each layer.
std::vector<ExpectedTensor> gemma_tensors(const WeightNames& names, const ModelConfig& config) {
  const std::int64_t hidden = config.hidden_size;
  std::vector<ExpectedTensor> all{{names.embed, {config.vocab_size, hidden}},
                                  {names.norm, {hidden}}};
  const auto add_mlp = [&](const std::string& prefix) {
    for (const std::string& name : {names.gate, names.up}) {
      all.push_back({prefix + name + ".weight", {config.intermediate_size, hidden}});
    }
    all.push_back({prefix + names.down + ".weight", {hidden, config.intermediate_size}});
  };
  for (std::int64_t index = 0; index < config.num_layers; ++index) {
    const std::string prefix = names.layer_prefix(index);
    const LayerShape layer = config.layer(index);
    const std::int64_t query = config.num_heads * layer.head_dim;
    const std::int64_t key = layer.num_kv_heads * layer.head_dim;
    const auto add = [&](const std::string& name, std::vector<std::int64_t> shape) {
      all.push_back({prefix + name, std::move(shape)});
    };
    const auto add_projection = [&](const std::string& name, std::int64_t out, std::int64_t in) {
      add(name + ".weight", {out, in});
    };
    add_projection(names.q, query, hidden);
    add_projection(names.k, key, hidden);
    if (!layer.values_are_keys) add_projection(names.v, key, hidden);
    add_projection(names.o, hidden, query);
    add(names.q_norm + ".weight", {layer.head_dim});
    add(names.k_norm + ".weight", {layer.head_dim});
    for (const char* norm :
         {"input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm",
          "post_feedforward_layernorm", "post_feedforward_layernorm_1",
          "post_feedforward_layernorm_2", "pre_feedforward_layernorm_2"}) {
      add(std::string(norm) + ".weight", {hidden});
    }
    add_mlp(prefix + names.mlp);
    const MoeConfig& moe = *config.moe;
    add("router.proj.weight", {moe.num_experts, hidden});
    add("router.scale", {hidden});
    add("router.per_expert_scale", {moe.num_experts});
    add("experts.gate_up_proj", {moe.num_experts, 2 * moe.intermediate_size, hidden});
    add("experts.down_proj", {moe.num_experts, hidden, moe.intermediate_size});
    add("layer_scalar", {1});
    all.push_back({fmt::format("{}{}.layer_scalar", kEncoderLayers, index), {1}});
  }
  all.push_back({kSelfConditioning + "pre_norm.weight", {hidden}});
  add_mlp(kSelfConditioning);
  return all;
}

}  // namespace

Family diffusion_gemma_family() {
  Family family;
  family.name = "diffusion_gemma";
  family.architectures = {"DiffusionGemmaForBlockDiffusion"};
  family.meaning = "DiffusionGemma: a causal encoder and a canvas of random tokens, with experts";
  family.source = "transformers, modeling_diffusion_gemma.py:DiffusionGemmaForBlockDiffusion";
  family.example = "capture google/diffusiongemma-26B-A4B-it";
  family.refuses = "images, bidirectional encoders, untied weights, biases";
  family.attention = FamilyAttention::canvas;
  family.experts = true;
  family.norm_weight_first = true;
  family.mask_keys = family.block_length_keys = {};  // finish_gemma() reads canvas_length
  family.keys = {{"num_experts_per_tok", "top_k_experts"}, {"hidden_act", "hidden_activation"}};
  family.default_head_dim = 256;
  family.stops_in_generation_config = true;
  family.weights.embed = "model.decoder.embed_tokens.weight";
  family.weights.norm = "model.decoder.norm.weight";
  family.weights.layer = "model.decoder.layers.{}.";
  family.weights.post_norm = "pre_feedforward_layernorm";
  family.ignored_tensors = {"model.encoder.vision_tower.", "model.encoder.embed_vision."};
  family.layer_kinds = true;
  // Switches of Gemma 4's other models, at the value of this one.
  family.neutral_keys = {{"attention_k_eq_v", "true"},
                         {"enable_moe_block", "true"},
                         {"use_double_wide_mlp", "false"},
                         {"num_kv_shared_layers", "0"},
                         {"hidden_size_per_layer_input", "0"},
                         {"vocab_size_per_layer_input"},
                         {"model_type", "\"diffusion_gemma_text\""}};
  family.shape_keys = gemma_shape_keys;
  family.read_layers = read_gemma_layers;
  family.read_rope = read_gemma_rope;
  family.finish = finish_gemma;
  family.record = record_gemma;
  family.tensors = gemma_tensors;
  return family;
}

}  // namespace blockscope
