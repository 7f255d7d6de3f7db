// See model_config.h.
#include "probe/checkpoint/model_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "decode_record/base/error.h"
#include "probe/checkpoint/block_diffusion_config.h"
#include "probe/checkpoint/family_table.h"
#include "probe/checkpoint/rope_config.h"
#include "probe/checkpoint/special_ids.h"

namespace blockscope {

namespace {

using nlohmann::json;

constexpr std::uintmax_t kMaxConfigBytes = 64u << 20;  // tokenizer.json is the largest, ~10 MB

std::string parse_dtype(const JsonObject& file, std::string& source) {
  source = "not given";
  std::string dtype;
  for (const char* key : {"torch_dtype", "dtype"}) {  // the later name wins, as in transformers 5
    const auto name = file.optional_string(key);
    if (!name) continue;
    if (*name != "float32" && *name != "float16" && *name != "bfloat16") {
      file.fail(key, "\"float32\", \"float16\" or \"bfloat16\"");
    }
    source = std::string("config.json:") + key;
    dtype = *name;
  }
  return dtype;
}

template <class T>
json optional_json(const std::optional<T>& value) {
  return value ? json(*value) : json(nullptr);
}

/// Records every value and its source, in the order of the printed table.
void record_resolved(const ConfigFile& file, const std::string& rope_source,
                     const std::string& dtype_source, const std::string& stop_source,
                     ModelConfig& config) {
  const auto add = [&](const std::string& key, const json& value, const std::string& source) {
    add_resolved(config, key, value, source);
  };
  const auto from = [&](const std::string& key) { return file.source(key); };
  const Family& family = file.family;
  const bool own_kv_key = family.keys.contains("num_key_value_heads");
  add("model_type", config.model_type, from("model_type"));
  add("architecture", config.architecture, from("architectures"));
  add("num_layers", config.num_layers, from("num_hidden_layers"));
  add("hidden_size", config.hidden_size, from("hidden_size"));
  add("intermediate_size", config.intermediate_size, from("intermediate_size"));
  add("num_heads", config.num_heads, from("num_attention_heads"));
  add("num_kv_heads", config.num_kv_heads,
      config.gemma ? "the largest of layer_kv_heads"
      : !own_kv_key && !file.keys.has("num_key_value_heads")
          ? "config.json:num_attention_heads (null key)"
          : from("num_key_value_heads"));
  add("head_dim", config.head_dim,
      config.gemma ? "the largest of layer_head_dim" : from("head_dim"));
  add("vocab_size", config.vocab_size, from("vocab_size"));
  add("max_position_embeddings", config.max_position_embeddings, from("max_position_embeddings"));
  add("rms_norm_eps", config.rms_norm_eps, from("rms_norm_eps"));
  const RopeConfig& rope = config.rope;
  // Of the layers that see all keys, where layers differ.
  add("rope_type", std::string(rope_type_name(rope.type)), rope_source);
  add("rope_theta", rope.theta, rope_source);
  if (rope.type != RopeType::kDefault) {
    add("rope_factor", rope.factor, rope_source);
    if (rope.type != RopeType::kProportional) {
      add("rope_original_max_position_embeddings", rope.original_max_position_embeddings,
          rope_source);
    }
  }
  if (rope.type == RopeType::kYarn) {
    add("rope_beta_fast", rope.beta_fast, rope_source);
    add("rope_beta_slow", rope.beta_slow, rope_source);
    add("rope_truncate", rope.truncate, rope_source);
    add("rope_attention_factor", optional_json(rope.attention_factor), rope_source);
    add("rope_mscale", optional_json(rope.mscale), rope_source);
    add("rope_mscale_all_dim", optional_json(rope.mscale_all_dim), rope_source);
  }
  if (rope.type == RopeType::kLlama3) {
    add("rope_low_freq_factor", rope.low_freq_factor, rope_source);
    add("rope_high_freq_factor", rope.high_freq_factor, rope_source);
  }
  if (rope.query_scaling_beta != 0.0) {
    add("query_scaling_beta", rope.query_scaling_beta, rope_source);
  }
  add("tie_word_embeddings", config.tie_word_embeddings, from("tie_word_embeddings"));
  if (rope.rotary_dim > 0) add("rotary_dim", rope.rotary_dim, "partial_rotary_factor");
  add("qk_norm", config.qk_norm, kTableSource);
  add("attention_bias", config.attention_bias, from("attention_bias"));
  // Added only if it differs: these entries are part of the digest to which calibration files are
  // bound.
  if (config.attention_output_bias != config.attention_bias) {
    add("attention_output_bias", config.attention_output_bias,
        family.keys.contains("attention_output_bias") ? from("attention_output_bias")
                                                      : kTableSource);
  }
  if (config.moe) {
    add("num_experts", config.moe->num_experts,
        from(file.keys.has("num_experts") ? "num_experts" : "num_local_experts"));
    add("experts_per_token", config.moe->experts_per_token, from("num_experts_per_tok"));
    add("moe_intermediate_size", config.moe->intermediate_size, from("moe_intermediate_size"));
    add("norm_topk_prob", config.moe->normalise, from("norm_topk_prob"));
    std::vector<std::int64_t> layers;
    for (std::size_t layer = 0; layer < config.moe->sparse.size(); ++layer) {
      if (config.moe->sparse[layer]) layers.push_back(static_cast<std::int64_t>(layer));
    }
    add("expert_layers", layers,
        config.gemma          ? kTableSource
        : config.moe->sigmoid ? "first_k_dense_replace"
                              : "decoder_sparse_step and mlp_only_layers");
  }
  family.record(file, config);
  if (config.attention_bidirectional) add("attention_bidirectional", true, kTableSource);
  if (config.attention_bidirectional || config.logit_shift != 0) {
    add("logit_shift", config.logit_shift, kTableSource);
  }
  add("attention_causal", config.attention_causal, "architecture table and overrides");
  add("dtype", config.dtype, dtype_source);
  add("stop_token_ids", config.stop_token_ids, stop_source);
  add("bos_token_id", optional_json(config.bos_token_id), from("bos_token_id"));
  add("pad_token_id", optional_json(config.pad_token_id), from("pad_token_id"));
  for (const auto& [key, value] : {std::pair{"mask_token_id", &config.mask_token_id},
                                   std::pair{"block_length", &config.block_length}}) {
    add(key, *value ? json((*value)->value) : json(nullptr),
        *value ? (*value)->source : std::string("not resolved"));
  }
}

std::optional<std::string> read_file(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return std::nullopt;
  return read_checkpoint_text(path, kMaxConfigBytes);
}

}  // namespace

ModelConfig parse_model_config(const ConfigTexts& texts, const ModelOverrides& overrides) {
  const JsonObject whole = JsonObject::parse(texts.config, texts.place_of("config.json"));
  const Family& family = find_family(whole);
  ConfigFile file{family, whole, family.shape_keys(whole), {}};
  if (texts.generation_config) {
    file.generation =
        JsonObject::parse(*texts.generation_config, texts.place_of("generation_config.json"));
  }
  ModelConfig config;
  config.where = whole.where();
  set_family(family, config);
  family.read_shape(file, config);
  refuse_unsupported(file.keys, family, config.num_layers);
  family.read_layers(file, config);
  std::string rope_source;
  family.read_rope(file, config, rope_source);
  std::string dtype_source;
  config.dtype = parse_dtype(file.keys, dtype_source);
  const std::string stop_source = resolve_special_ids(file, config);
  resolve_block_diffusion(texts, file.keys, family, overrides, config);
  refuse_unread_keys(file.keys, family.neutral_keys);
  family.finish(file, config);
  record_resolved(file, rope_source, dtype_source, stop_source, config);
  return config;
}

ModelConfig load_model_config(const std::filesystem::path& folder,
                              const ModelOverrides& overrides) {
  ConfigTexts texts;
  texts.folder = folder.string();
  const auto config = read_file(folder / "config.json");
  if (!config) {
    throw CheckpointError(
        fmt::format("{}: expected config.json in the checkpoint folder, got nothing. HINT: give a "
                    "folder in the Hugging Face layout or a model id of the local hub cache",
                    folder.string()));
  }
  texts.config = *config;
  texts.generation_config = read_file(folder / "generation_config.json");
  texts.tokenizer = read_file(folder / "tokenizer.json");
  texts.tokenizer_config = read_file(folder / "tokenizer_config.json");
  texts.added_tokens = read_file(folder / "added_tokens.json");
  texts.block_diffusion = read_file(folder / "block_diffusion.json");
  texts.dlm_config = read_file(folder / "dlm_config.json");
  return parse_model_config(texts, overrides);
}

LayerSizes layer_sizes(const ModelConfig& config) {
  LayerSizes sizes;
  sizes.num_layers = config.num_layers;
  sizes.num_heads = config.num_heads;
  sizes.num_kv_heads = config.num_kv_heads;
  sizes.head_dim = config.head_dim;
  for (const LayerShape& layer : config.layer_shapes) {
    sizes.layer_kv_heads.push_back(layer.num_kv_heads);
    sizes.layer_head_dim.push_back(layer.head_dim);
    sizes.layer_window.push_back(layer.window);
  }
  return sizes;
}

std::int64_t require_mask_token_id(const ModelConfig& config) {
  if (config.mask_token_id) return config.mask_token_id->value;
  throw CheckpointError(fmt::format(
      "{}: model_type \"{}\": no mask token id: expected one in this file, "
      "block_diffusion.json, dlm_config.json or the tokenizer's files, got none, and "
      "the family has no default within the vocabulary of {}. HINT: pass --mask-token-id",
      config.where, config.model_type, config.vocab_size));
}

std::int64_t require_block_length(const ModelConfig& config) {
  if (config.block_length) return config.block_length->value;
  throw CheckpointError(
      fmt::format("{}: model_type \"{}\": no block length: expected one in this file, "
                  "block_diffusion.json or dlm_config.json, got none. HINT: pass --block-length",
                  config.where, config.model_type));
}

std::string resolved_table(const ModelConfig& config) {
  std::size_t key_width = 0;
  std::size_t value_width = 0;
  for (const ResolvedEntry& entry : config.resolved) {
    key_width = std::max(key_width, entry.key.size());
    value_width = std::max(value_width, entry.value.size());
  }
  std::string text;
  for (const ResolvedEntry& entry : config.resolved) {
    text += fmt::format("{:<{}}  {:<{}}  {}\n", entry.key, key_width, entry.value, value_width,
                        entry.source);
  }
  for (const std::string& warning : config.warnings) text += "warning: " + warning + "\n";
  return text;
}

std::string resolved_json(const ModelConfig& config) {
  nlohmann::ordered_json root = nlohmann::ordered_json::object();
  for (const ResolvedEntry& entry : config.resolved) {
    root[entry.key] = {{"value", nlohmann::ordered_json::parse(entry.value)},
                       {"source", entry.source}};
  }
  root["warnings"] = config.warnings;
  return root.dump();
}

}  // namespace blockscope
