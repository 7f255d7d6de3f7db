#include "probe/checkpoint/llada_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "probe/checkpoint/config_limits.h"

namespace blockscope {
namespace {

/// The official configuration without this key is of another model. `meant`: which.
void require_key(const JsonObject& file, const char* key, const char* expected, const char* meant) {
  if (file.has(key)) return;
  file.fail(key, expected,
            fmt::format("without this key the official configuration means {}, which is not "
                        "supported; add the key if the model was made with {}",
                        meant, expected));
}

// What the keys mean where they are absent: `configuration_llada.py`, class ModelConfig. Those that
// change no number: config_keys.cpp.
void refuse_other_llada(const JsonObject& file) {
  require_key(file, "block_type", "\"llama\"", "blocks of type \"sequential\"");
  require_key(file, "layer_norm_type", "\"rms\"", "LayerNorm (\"default\")");
  require_key(file, "rope", "true", "learned positions instead of RoPE");
  file.require_text("block_type", "llama");
  file.require_text("layer_norm_type", "rms");
  file.require_text("activation_type", "silu");
  file.require_switch("alibi", false);
  file.require_switch("rope", true);
  file.require_switch("rope_full_precision", true);
  file.require_switch("attention_layer_norm", false);
  file.require_switch("input_emb_norm", false);
  file.require_switch("scale_logits", false);
  file.require_switch("include_bias", false);
  file.require_switch("bias_for_layer_norm", false);
  file.require_switch("layer_norm_with_affine", true);
}

std::int64_t key_value_heads(const JsonObject& file, std::int64_t num_heads) {
  const auto given = file.optional_integer("n_kv_heads", 1, kMaxHeads);
  const auto single = file.optional_boolean("multi_query_attention");
  const std::int64_t meant = single.value_or(false) ? 1 : num_heads;
  if (given && single && *given != meant) {
    file.fail("multi_query_attention",
              fmt::format("nothing beside n_kv_heads {} (true means 1, false the {} of n_heads)",
                          *given, num_heads),
              "the official model refuses the two together; the weights of k_proj say which holds");
  }
  return given.value_or(meant);
}

std::int64_t mlp_width(const JsonObject& file, std::int64_t hidden, std::int64_t max_width) {
  if (const auto given = file.optional_integer("mlp_hidden_size", 1, max_width)) {
    file.pass_over({"mlp_ratio"});  // counts without a width only; published files have both
    return *given;
  }
  return file.integer("mlp_ratio", 1, 64) * hidden;
}

}  // namespace

std::string llada_key(const std::string& key) {
  static const std::map<std::string, std::string> keys = {
      {"num_hidden_layers", "n_layers"},
      {"hidden_size", "d_model"},
      {"intermediate_size", "mlp_hidden_size"},
      {"num_attention_heads", "n_heads"},
      {"num_key_value_heads", "n_kv_heads"},
      {"head_dim", "d_model"},
      {"max_position_embeddings", "max_sequence_length"},
      {"tie_word_embeddings", "weight_tying"},
      {"attention_bias", "include_qkv_bias"},
  };
  const auto found = keys.find(key);
  return found == keys.end() ? key : found->second;
}

void parse_llada_shape(const JsonObject& file, std::int64_t max_width, ModelConfig& config) {
  refuse_other_llada(file);
  config.num_layers = file.integer("n_layers", 1, kMaxLayers);
  config.hidden_size = file.integer("d_model", 1, max_width);
  config.intermediate_size = mlp_width(file, config.hidden_size, max_width);
  config.num_heads = file.integer("n_heads", 1, kMaxHeads);
  config.num_kv_heads = key_value_heads(file, config.num_heads);
  if (config.num_heads % config.num_kv_heads != 0) {
    file.fail("n_kv_heads", fmt::format("a divisor of n_heads ({})", config.num_heads));
  }
  if (config.hidden_size % (2 * config.num_heads) != 0) {
    file.fail("d_model", fmt::format("an even multiple of the {} heads", config.num_heads));
  }
  config.head_dim = config.hidden_size / config.num_heads;
  const std::int64_t vocab = file.integer("vocab_size", 1, kMaxVocab);
  config.vocab_size = file.optional_integer("embedding_size", vocab, kMaxVocab).value_or(vocab);
  config.max_position_embeddings = file.integer("max_sequence_length", 1, kMaxPositions);
  config.rms_norm_eps = file.number("rms_norm_eps", 0.0, 1.0);
  config.tie_word_embeddings = file.optional_boolean("weight_tying").value_or(true);
  file.require_switch("tie_word_embeddings", config.tie_word_embeddings);
  config.attention_bias = file.optional_boolean("include_qkv_bias").value_or(false);
}

}  // namespace blockscope
