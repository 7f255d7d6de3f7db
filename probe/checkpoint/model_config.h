// The model's configuration, read strictly from a checkpoint's config.json and the small files next
// to it. Every value is checked, and every resolved value keeps its source. Nothing that would
// change the numbers is ignored. This code reads no weights and never executes remote code.
//
// Precedence of the mask id, highest first; the first source that has one wins:
//   1. the command line (`--mask-token-id`)              5. the family's default, only if it is
//   2. config.json, under the family's key names            smaller than vocab_size
//   3. block_diffusion.json, then dlm_config.json        6. none: `require_mask_token_id` throws
//   4. the family's mask token in the tokenizer's files
// Two of the sources 2-4 that disagree are an error unless the command line decides. The block
// length follows 1, 2, 3, 5. For autoregressive families (`qwen3`) only the command line counts.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "decode_record/schema/layer_sizes.h"
#include "probe/checkpoint/draft_config.h"
#include "probe/checkpoint/gemma_config.h"
#include "probe/checkpoint/moe_config.h"

namespace blockscope {

/// A value and its source, e.g. {4, "config.json:block_size"}.
template <class T>
struct Resolved {
  T value{};
  std::string source;
};

/// Values from outside the checkpoint. They always win, and are recorded with their source.
struct ModelOverrides {
  std::optional<std::int64_t> mask_token_id{};
  std::optional<std::int64_t> block_length{};
  std::string mask_source = "command line --mask-token-id";
  std::string block_source = "command line --block-length";
};

/// The supported RoPE variants of transformers' `modeling_rope_utils`; all others are refused.
/// kProportional: the first partial_rotary_factor of the pairs of a whole head rotate (Gemma 4).
enum class RopeType { kDefault, kLinear, kDynamic, kYarn, kLlama3, kProportional };

struct RopeConfig {
  RopeType type = RopeType::kDefault;
  double theta = 10000.0;
  std::int64_t rotary_dim = 0;  // number of a head's first channels that rotate, even; 0: all
  double factor = 1.0;          // every type but default
  std::int64_t original_max_position_embeddings = 0;  // yarn, llama3, dynamic
  std::optional<double> attention_factor;             // yarn; multiplies cos and sin
  double beta_fast = 32.0;                            // yarn
  double beta_slow = 1.0;                             // yarn
  std::optional<double> mscale;                       // yarn
  std::optional<double> mscale_all_dim;               // yarn
  bool truncate = true;                               // yarn: round the correction range
  double low_freq_factor = 1.0;                       // llama3
  double high_freq_factor = 4.0;                      // llama3
  // Ministral: queries of position p are multiplied by 1 + this * ln(1 + floor(p / original
  // length)).
  double query_scaling_beta = 0.0;

  bool operator==(const RopeConfig&) const = default;
};

/// The attention of one layer, where layers differ.
struct LayerShape {
  std::int64_t num_kv_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t window = 0;       // newest keys that a position sees, its own included; 0: all
  bool values_are_keys = false;  // the layer has no v projection: the k projection makes both
  RopeConfig rope{};
};

/// One line of the printed and recorded table; `value` is JSON text.
struct ResolvedEntry {
  std::string key;
  std::string value;
  std::string source;
};

struct ModelConfig {
  std::string where;         // name of config.json in messages
  std::string model_type;    // name of an entry in family_table.h
  std::string architecture;  // class name in `architectures`, or the family's default
  std::int64_t num_layers = 0;
  std::int64_t hidden_size = 0;
  std::int64_t intermediate_size = 0;
  std::int64_t num_heads = 0;  // H, query heads
  std::int64_t num_kv_heads =
      0;                      // K, the largest of a layer; query head h uses KV head h / (H / K)
  std::int64_t head_dim = 0;  // D, even, the largest; may differ from hidden_size / num_heads
  std::vector<LayerShape> layer_shapes;  // [num_layers]; empty: all layers are alike
  std::int64_t vocab_size = 0;
  std::int64_t max_position_embeddings = 0;
  double rms_norm_eps = 0.0;
  RopeConfig rope;
  bool tie_word_embeddings = false;
  bool rope_in_float32 = false;          // q and k are rotated before they are rounded (LLaDA)
  bool qk_norm = false;                  // RMSNorm over head_dim of q and k, before RoPE
  bool attention_bias = false;           // bias on the q, k and v projections
  bool attention_output_bias = false;    // bias on the o projection (Qwen3: if the others have one)
  bool attention_causal = false;         // plain autoregressive; both false: block-causal
  bool attention_bidirectional = false;  // every position sees all others, also later masks
  std::int64_t logit_shift = 0;          // 1: the logits of position p predict position p + 1
  std::optional<MoeConfig> moe;          // layers with experts; unset: no layer has any
  std::optional<DraftConfig> draft;      // a DFlash draft, which runs only with its target
  std::optional<GemmaConfig> gemma;      // DiffusionGemma's layers, and its canvas of random tokens
  std::string dtype;  // "float32" | "float16" | "bfloat16" of the config; may be ""
  std::vector<std::int64_t> stop_token_ids;  // of generation_config.json, else of config.json
  std::optional<std::int64_t> bos_token_id;
  std::optional<std::int64_t> pad_token_id;
  std::int64_t delete_token_id = -1;  // LLaDA2.2's edit tokens; -1: none
  std::int64_t split_token_id = -1;
  std::optional<Resolved<std::int64_t>> mask_token_id;
  std::optional<Resolved<std::int64_t>> block_length;

  std::vector<ResolvedEntry> resolved;  // every value above, in this order
  std::vector<std::string> warnings;    // e.g. an EOS id outside the vocabulary

  /// The attention of a layer, whether or not layers differ.
  LayerShape layer(std::int64_t index) const {
    if (layer_shapes.empty()) return {num_kv_heads, head_dim, 0, false, rope};
    return layer_shapes[static_cast<std::size_t>(index)];
  }
};

/// The texts for `parse_model_config`; only config.json is required. `folder` is for messages.
struct ConfigTexts {
  std::string folder{};
  std::string config{};                            // config.json
  std::optional<std::string> generation_config{};  // generation_config.json
  std::optional<std::string> tokenizer{};          // tokenizer.json
  std::optional<std::string> tokenizer_config{};   // tokenizer_config.json
  std::optional<std::string> added_tokens{};       // added_tokens.json
  std::optional<std::string> block_diffusion{};    // block_diffusion.json
  std::optional<std::string> dlm_config{};         // dlm_config.json

  std::string place_of(const std::string& file) const {
    return folder.empty() ? file : folder + "/" + file;
  }
};

/// Throws CheckpointError naming file, key, expected and found.
ModelConfig parse_model_config(const ConfigTexts& texts, const ModelOverrides& overrides = {});
ModelConfig load_model_config(const std::filesystem::path& folder,
                              const ModelOverrides& overrides = {});

/// Heads, sizes and windows of the layers, without what a trace records of them.
LayerSizes layer_sizes(const ModelConfig& config);

/// Return the resolved mask id or block length, or throw a CheckpointError that names the file and
/// the flag to pass.
std::int64_t require_mask_token_id(const ModelConfig& config);
std::int64_t require_block_length(const ModelConfig& config);

/// Every resolved value and its source: a text table for the terminal, and JSON for the trace:
/// {"num_layers": {"value": 36, "source": "config.json:num_hidden_layers"}, ..., "warnings":
/// [...]}.
std::string resolved_table(const ModelConfig& config);
std::string resolved_json(const ModelConfig& config);

}  // namespace blockscope
