// Qwen2, Qwen3 and Qwen3-MoE, whose config.json has transformers' own keys, and the reading of keys
// that most other families share. These families decode token by token, unless the command line
// gives a mask token and a block length.
#include "probe/checkpoint/qwen_family.h"

#include <fmt/format.h>

#include <optional>

#include "probe/checkpoint/config_limits.h"

namespace blockscope {
namespace {

/// Reads Qwen3-MoE's keys; nullopt if the file has no experts.
std::optional<MoeConfig> parse_qwen_experts(const JsonObject& file, std::int64_t num_layers) {
  MoeConfig config;
  // transformers 5 saves the number under the second name.
  const char* key = file.has("num_local_experts") ? "num_local_experts" : "num_experts";
  config.num_experts = file.integer(key, 0, kMaxExperts);
  const auto other = file.optional_integer("num_experts", 0, kMaxExperts);
  if (other.value_or(config.num_experts) != config.num_experts) {
    file.fail("num_experts", fmt::format("the {} of num_local_experts", config.num_experts));
  }
  if (config.num_experts == 0) {
    file.pass_over({"num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob",
                    "decoder_sparse_step", "mlp_only_layers"});
    return std::nullopt;
  }
  config.experts_per_token = file.integer("num_experts_per_tok", 1, config.num_experts);
  config.intermediate_size = file.integer("moe_intermediate_size", 1, kMaxWidth);
  config.normalise = file.optional_boolean("norm_topk_prob").value_or(false);
  const std::int64_t every =
      file.optional_integer("decoder_sparse_step", 1, num_layers).value_or(1);
  for (std::int64_t layer = 0; layer < num_layers; ++layer) {
    config.sparse.push_back((layer + 1) % every == 0);
  }
  if (!file.has("mlp_only_layers")) return config;
  const nlohmann::json& dense = file.raw().at("mlp_only_layers");
  if (!dense.is_array()) file.fail("mlp_only_layers", "a list of layers");
  for (const nlohmann::json& layer : dense) {
    if (!layer.is_number_integer() || layer < 0 || layer >= num_layers) {
      file.fail("mlp_only_layers", fmt::format("layers from 0 to {}", num_layers - 1));
    }
    config.sparse[layer.get<std::size_t>()] = false;
  }
  return config;
}

}  // namespace

void read_qwen_shape(const ConfigFile& file, ModelConfig& config) {
  const JsonObject& keys = file.keys;
  const std::int64_t default_head_dim = file.family.default_head_dim;
  config.num_layers = keys.integer("num_hidden_layers", 1, kMaxLayers);
  config.hidden_size = keys.integer("hidden_size", 1, kMaxWidth);
  config.intermediate_size = keys.integer("intermediate_size", 1, kMaxWidth);
  config.num_heads = keys.integer("num_attention_heads", 1, kMaxHeads);
  // null means "as many as query heads", as in transformers; an absent key is an error.
  if (!keys.raw().contains("num_key_value_heads")) {
    keys.fail("num_key_value_heads", "an integer");
  }
  config.num_kv_heads =
      keys.optional_integer("num_key_value_heads", 1, kMaxHeads).value_or(config.num_heads);
  if (config.num_heads % config.num_kv_heads != 0) {
    keys.fail("num_key_value_heads",
              fmt::format("a divisor of num_attention_heads ({})", config.num_heads));
  }
  const auto head_dim = keys.optional_integer("head_dim", 1, kMaxHeadDim);
  if (!head_dim && default_head_dim == 0 && config.hidden_size % config.num_heads != 0) {
    keys.fail("head_dim", fmt::format("an integer: hidden_size {} is no multiple of the {} heads",
                                      config.hidden_size, config.num_heads));
  }
  const std::int64_t by_default =
      default_head_dim > 0 ? default_head_dim : config.hidden_size / config.num_heads;
  config.head_dim = head_dim.value_or(by_default);
  if (config.head_dim % 2 != 0) keys.fail("head_dim", "an even number (RoPE rotates pairs)");
  config.vocab_size = keys.integer("vocab_size", 1, kMaxVocab);
  config.max_position_embeddings = keys.integer("max_position_embeddings", 1, kMaxPositions);
  config.rms_norm_eps = keys.number("rms_norm_eps", 0.0, 1.0);
}

void read_qwen_layers(const ConfigFile& file, ModelConfig& config) {
  const JsonObject& keys = file.keys;
  const Family& family = file.family;
  config.tie_word_embeddings = keys.optional_boolean("tie_word_embeddings").value_or(false);
  if (family.experts) config.moe = parse_qwen_experts(keys, config.num_layers);
  const bool bias_key = keys.optional_boolean("attention_bias").value_or(false);
  config.attention_bias = family.qkv_bias || bias_key;
  config.attention_output_bias = !family.qkv_bias && bias_key;
}

nlohmann::ordered_json qwen_config_json(const Family& family, const ModelConfig& config,
                                        const TrainedTokens& tokens,
                                        const nlohmann::ordered_json& own) {
  nlohmann::ordered_json keys;
  keys["architectures"] = nlohmann::ordered_json::array({family.architectures.front()});
  keys["attention_bias"] = false;
  keys["attention_dropout"] = 0.0;
  keys.update(own);
  keys["eos_token_id"] = tokens.end;
  keys["pad_token_id"] = tokens.end;
  keys["head_dim"] = config.head_dim;
  keys["hidden_act"] = "silu";
  keys["hidden_size"] = config.hidden_size;
  keys["initializer_range"] = 0.02;
  keys["intermediate_size"] = config.intermediate_size;
  keys["max_position_embeddings"] = config.max_position_embeddings;
  keys["model_type"] = family.name;
  keys["num_attention_heads"] = config.num_heads;
  keys["num_hidden_layers"] = config.num_layers;
  keys["num_key_value_heads"] = config.num_kv_heads;
  keys["rms_norm_eps"] = config.rms_norm_eps;
  keys["rope_scaling"] = nullptr;
  keys["rope_theta"] = config.rope.theta;
  keys["sliding_window"] = nullptr;
  keys["tie_word_embeddings"] = config.tie_word_embeddings;
  keys["torch_dtype"] = "bfloat16";
  keys["use_cache"] = true;
  keys["use_sliding_window"] = false;
  keys["vocab_size"] = config.vocab_size;
  return keys;
}

Family qwen2_family() {
  Family family;
  family.name = "qwen2";
  family.architectures = {"Qwen2ForCausalLM"};
  family.meaning = "Qwen2 and Qwen2.5, dense";
  family.source = "transformers, modeling_qwen2.py";
  family.example = "capture Qwen/Qwen2.5-0.5B";
  family.attention = FamilyAttention::causal;
  family.qk_norm = false;
  family.qkv_bias = true;
  family.default_head_dim = 0;
  return family;
}

Family qwen3_family() {
  Family family;
  family.name = "qwen3";
  family.architectures = {"Qwen3ForCausalLM"};
  family.meaning = "Qwen3, dense";
  family.source = "transformers, modeling_qwen3.py";
  family.example = "capture models/needle/backbone";
  family.attention = FamilyAttention::causal;
  family.training.config_json = [](const Family& of, const ModelConfig& config,
                                   const TrainedTokens& tokens) {
    return qwen_config_json(of, config, tokens);
  };
  return family;
}

Family qwen3_moe_family() {
  Family family = qwen3_family();
  family.name = "qwen3_moe";
  family.architectures = {"Qwen3MoeForCausalLM"};
  family.meaning = "Qwen3 with mixtures of experts";
  family.source = "transformers, modeling_qwen3_moe.py:Qwen3MoeSparseMoeBlock";
  family.example = "capture Qwen/Qwen3-30B-A3B";
  family.experts = true;
  family.training = {};
  return family;
}

}  // namespace blockscope
