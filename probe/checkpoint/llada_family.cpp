// LLaDA, a bidirectional model. The keys of its config.json are OLMo's (`configuration_llada.py`,
// `modeling_llada.py`), not those of transformers' own models.
#include <fmt/format.h>

#include "decode_record/base/error.h"
#include "probe/checkpoint/config_limits.h"
#include "probe/checkpoint/family_table.h"

namespace blockscope {
namespace {

/// Requires a key without which the official configuration means another model, `meant`.
void require_key(const JsonObject& file, const char* key, const char* expected, const char* meant) {
  if (file.has(key)) return;
  file.fail(key, expected,
            fmt::format("without this key the official configuration means {}, which is not "
                        "supported; add the key if the model was made with {}",
                        meant, expected));
}

// `configuration_llada.py`, class ModelConfig, says what absent keys mean. Keys that change no
// number are in neutral_keys below.
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
              fmt::format("no value together with n_kv_heads {} (true means 1, false means {})",
                          *given, num_heads),
              "the official model refuses both keys together; the shape of k_proj shows which one "
              "is right");
  }
  return given.value_or(meant);
}

std::int64_t mlp_width(const JsonObject& file, std::int64_t hidden) {
  if (const auto given = file.optional_integer("mlp_hidden_size", 1, kMaxWidth)) {
    file.pass_over({"mlp_ratio"});  // used only without a width; published files have both
    return *given;
  }
  return file.integer("mlp_ratio", 1, 64) * hidden;
}

/// `embedding_size`, if given, is the vocabulary size: logits have that many columns, and the
/// official argmax runs over all of them.
void read_llada_shape(const ConfigFile& config_file, ModelConfig& config) {
  const JsonObject& file = config_file.keys;
  refuse_other_llada(file);
  config.num_layers = file.integer("n_layers", 1, kMaxLayers);
  config.hidden_size = file.integer("d_model", 1, kMaxWidth);
  config.intermediate_size = mlp_width(file, config.hidden_size);
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

void fit_llada(ModelConfig& shapes) {
  if (shapes.hidden_size % (2 * shapes.num_heads) != 0) {
    throw UsageError(fmt::format(
        "--hidden: expected an even multiple of the {} --heads in the family llada, got {}",
        shapes.num_heads, shapes.hidden_size));
  }
  shapes.head_dim = shapes.hidden_size / shapes.num_heads;
  shapes.rms_norm_eps = 1e-5;
}

/// A config.json in the form of `configuration_llada.py`, with the switches of LLaDA-8B.
nlohmann::ordered_json llada_config_json(const Family& family, const ModelConfig& config,
                                         const TrainedTokens& tokens) {
  nlohmann::ordered_json keys;
  keys["activation_type"] = "silu";
  keys["alibi"] = false;
  keys["architectures"] = nlohmann::ordered_json::array({family.architectures.front()});
  keys["attention_dropout"] = 0.0;
  keys["attention_layer_norm"] = false;
  keys["bias_for_layer_norm"] = false;
  keys["block_group_size"] = 1;
  keys["block_type"] = "llama";
  keys["d_model"] = config.hidden_size;
  keys["embedding_dropout"] = 0.0;
  keys["embedding_size"] = config.vocab_size;
  keys["eos_token_id"] = tokens.end;
  keys["include_bias"] = false;
  keys["include_qkv_bias"] = config.attention_bias;
  keys["init_std"] = 0.02;
  keys["input_emb_norm"] = false;
  keys["layer_norm_type"] = "rms";
  keys["layer_norm_with_affine"] = true;
  keys["mask_token_id"] = tokens.mask;
  keys["max_sequence_length"] = config.max_position_embeddings;
  keys["mlp_hidden_size"] = config.intermediate_size;
  keys["model_type"] = family.name;
  keys["multi_query_attention"] = nullptr;
  keys["n_heads"] = config.num_heads;
  keys["n_kv_heads"] = config.num_kv_heads;
  keys["n_layers"] = config.num_layers;
  keys["pad_token_id"] = tokens.end;
  keys["residual_dropout"] = 0.0;
  keys["rms_norm_eps"] = config.rms_norm_eps;
  keys["rope"] = true;
  keys["rope_full_precision"] = true;
  keys["rope_theta"] = config.rope.theta;
  keys["scale_logits"] = false;
  keys["torch_dtype"] = "bfloat16";
  keys["use_cache"] = false;
  keys["vocab_size"] = config.vocab_size;
  keys["weight_tying"] = config.tie_word_embeddings;
  return keys;
}

}  // namespace

Family llada_family() {
  Family family;
  family.name = "llada";
  family.architectures = {"LLaDAModelLM"};
  family.meaning = "LLaDA and LLaDA 1.5, bidirectional models";
  family.source = "LLaDA, modeling_llada.py and generate.py";
  family.example = "capture GSAI-ML/LLaDA-8B-Instruct --cache dual";
  family.refuses =
      "ALiBi, blocks other than \"llama\", norms other than RMS or over all heads together, "
      "biases outside q, k and v";
  family.attention = FamilyAttention::bidirectional;
  family.qk_norm = false;
  family.rotates_in_float32 = true;
  family.default_head_dim = 0;
  family.block_length_keys = {"block_length"};
  family.mask_token = "<|mdm_mask|>";
  family.default_mask_token_id = 126336;
  family.default_block_length = 32;
  // The LM head and every layer's down projection have the same name, ff_out.
  family.weights = {.embed = "model.transformer.wte.weight",
                    .norm = "model.transformer.ln_f.weight",
                    .lm_head = "model.transformer.ff_out.weight",
                    .layer = "model.transformer.blocks.{}.",
                    .input_norm = "attn_norm",
                    .post_norm = "ff_norm",
                    .q = "q_proj",
                    .k = "k_proj",
                    .v = "v_proj",
                    .o = "attn_out",
                    .q_norm = "q_norm",
                    .k_norm = "k_norm",
                    .mlp = "",
                    .gate = "ff_proj",
                    .up = "up_proj",
                    .down = "ff_out"};
  family.keys = {{"num_hidden_layers", "n_layers"},
                 {"hidden_size", "d_model"},
                 {"intermediate_size", "mlp_hidden_size"},
                 {"num_attention_heads", "n_heads"},
                 {"num_key_value_heads", "n_kv_heads"},
                 {"head_dim", "d_model"},
                 {"max_position_embeddings", "max_sequence_length"},
                 {"tie_word_embeddings", "weight_tying"},
                 {"attention_bias", "include_qkv_bias"}};
  // The first two are used only with alibi and attention_layer_norm, which are refused. Groups only
  // wrap layers for FSDP; weights that were saved in groups are refused because of their names.
  family.neutral_keys = {
      {"alibi_bias_max"}, {"attention_layer_norm_with_affine"}, {"block_group_size"}};
  family.read_shape = read_llada_shape;
  family.read_layers = [](const ConfigFile&, ModelConfig&) {};  // read_shape reads everything
  family.training = {.by_name = true, .fit = fit_llada, .config_json = llada_config_json};
  return family;
}

}  // namespace blockscope
