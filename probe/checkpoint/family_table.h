// The table of model families. Each entry is in its family's own file; family_table.cpp lists them.
// All code that depends on the family asks the entry: reading config.json, weight names, decoding,
// training, `blockscope help family`. By default an entry is block-causal and has Qwen3's config
// keys and weight names.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "probe/checkpoint/config_keys.h"
#include "probe/checkpoint/json_object.h"
#include "probe/checkpoint/model_config.h"
#include "probe/checkpoint/weight_names.h"

namespace blockscope {

/// causal: token by token, unless the command line gives mask and block length. bidirectional:
/// every position sees all others, and blocks are counted from the prompt's end. canvas: blocks of
/// random tokens after a causal prompt, also counted from its end.
enum class FamilyAttention { block_causal, causal, bidirectional, canvas };

/// A config.json as its family reads it.
struct ConfigFile {
  const Family& family;
  JsonObject whole;
  JsonObject keys;  // the keys of the model's shape: `whole`, or an object in it
  std::optional<JsonObject> generation;  // generation_config.json

  /// The source of the value of a transformers key, which may have another name in the family.
  std::string source(const std::string& key) const;
};

/// Adds a line to the table of resolved values.
void add_resolved(ModelConfig& config, const std::string& key, const nlohmann::json& value,
                  const std::string& source);
inline constexpr const char* kTableSource = "architecture table";  ///< source: the family's entry

/// The ids of special tokens in the trainer's tokenizer.
struct TrainedTokens {
  std::int64_t mask = 0;
  std::int64_t end = 0;
};

/// How `blockscope train` makes a model of the family.
struct FamilyTraining {
  bool by_name = false;    // --family offers it
  std::string backbone{};  // the family of the model during the first stage; empty: this one
  std::string target{};    // for a draft: the family of its targets
  bool reuse = false;      // `train --stage reuse` can distil it
  /// Fits the trainer's default shapes to the family. Throws UsageError.
  void (*fit)(ModelConfig& shapes) = [](ModelConfig&) {};
  /// Makes the config.json of a trained model; null: the family can't be trained.
  nlohmann::ordered_json (*config_json)(const Family&, const ModelConfig&,
                                        const TrainedTokens&) = nullptr;
};

/// The keys of transformers' Qwen2 and Qwen3 (`configuration_qwen2.py`, `configuration_qwen3.py`,
/// `configuration_qwen3_moe.py`). All throw CheckpointError naming the key.
void read_qwen_shape(const ConfigFile& file, ModelConfig& config);   // sizes, heads, norm
void read_qwen_layers(const ConfigFile& file, ModelConfig& config);  // tying, experts, biases
/// One RoPE for all layers (rope_config.h). `source`: where it was found.
void read_common_rope(const ConfigFile& file, ModelConfig& config, std::string& source);

struct Family {
  std::string name;                        // `model_type` in config.json
  std::vector<std::string> architectures;  // accepted class names; the first is the default
  std::string meaning;                     // one sentence
  std::string source;                      // file and function of the published code
  std::string example{};                   // arguments of `blockscope`
  std::string refusal{};                   // why the family is not supported; empty: it is
  std::string refuses{};                   // variants that the entry's functions refuse, as text

  FamilyAttention attention = FamilyAttention::block_causal;
  std::int64_t logit_shift = 0;       // 1: the logits of position p predict position p + 1
  std::int64_t sub_block_length = 0;  // default length of sub-blocks; 0: no sub-blocks
  bool causal_only = false;           // never block-causal, whatever the command line gives
  bool draft = false;                 // runs together with a target (draft_config.h)
  bool qk_norm = true;
  bool qkv_bias = false;                // biases on q, k and v, never on o
  bool experts = false;                 // layers may have experts (moe_config.h)
  bool query_scaling = false;           // rope_parameters may have llama_4_scaling_beta
  bool partial_rotary = false;          // only partial_rotary_factor of a head's channels rotate
  bool layer_kinds = false;             // read_rope reads layer_types; else all must be full
  bool rotates_in_float32 = false;      // q and k are rotated before they are rounded
  bool norm_weight_first = false;       // norms are rounded only after multiplying by the weight
  std::int64_t default_head_dim = 128;  // if the key is absent; 0: hidden_size / heads
  bool stops_in_generation_config = false;  // only there; eos_token_id of config.json is not read
  std::optional<double> default_rope_theta{};  // if no key has it; nothing: the file must

  std::vector<std::string> mask_keys{"mask_token_id"};  // keys of the mask id
  std::vector<std::string> block_length_keys{"block_size", "block_length"};
  std::string mask_token{};  // the mask token's text in the tokenizer
  std::optional<std::int64_t> default_mask_token_id{};
  std::optional<std::int64_t> default_block_length{};

  WeightNames weights{};
  std::vector<std::string> ignored_tensors{};  // prefixes of what a checkpoint may hold unused
  /// All tensors of the checkpoint; null: those of Qwen3's layers, under the names in `weights`.
  std::vector<ExpectedTensor> (*tensors)(const WeightNames&, const ModelConfig&) = nullptr;
  std::map<std::string, std::string> keys{};  // transformers key -> own key, where they differ
  std::vector<NeutralKey> neutral_keys{};  // in addition to those of all families (config_keys.h)

  /// Whether the file belongs to the family, whatever its model_type. Throws CheckpointError.
  bool (*claims)(const JsonObject& whole, const std::optional<std::string>& architecture) = nullptr;
  JsonObject (*shape_keys)(const JsonObject& whole) = [](const JsonObject& whole) { return whole; };
  void (*read_shape)(const ConfigFile&, ModelConfig&) = read_qwen_shape;
  void (*read_layers)(const ConfigFile&, ModelConfig&) = read_qwen_layers;
  void (*read_rope)(const ConfigFile&, ModelConfig&, std::string& source) = read_common_rope;
  /// Called after everything else was read.
  void (*finish)(const ConfigFile&, ModelConfig&) = [](const ConfigFile&, ModelConfig&) {};
  /// Adds to `resolved` what only this family has.
  void (*record)(const ConfigFile&, ModelConfig&) = [](const ConfigFile&, ModelConfig&) {};

  FamilyTraining training{};

  /// The family's name for a transformers key.
  const std::string& key(const std::string& transformers_key) const;
};

const std::vector<Family>& family_table();
/// The names of the families for which `which` is true.
std::vector<std::string> families_with(bool (*which)(const Family&));
/// The family with this `model_type`. Throws CheckpointError for an unknown one.
const Family& family_named(std::string_view name);
const Family& family_of(const ModelConfig& config);
/// The family that has this one as its backbone, or itself.
const Family& trained_from(const Family& backbone);
/// Writes the family's name to `config`, and the values that are the same for all its models.
void set_family(const Family& family, ModelConfig& config);

/// The family of a config.json, by `model_type` and `architectures`, which must agree. Throws
/// CheckpointError for an unknown family and for a known but unsupported one, with a list of the
/// supported ones.
const Family& find_family(const JsonObject& config);

/// The contents of the entry as pairs of texts (name, value), for `blockscope help family NAME`.
std::vector<std::pair<std::string, std::string>> family_facts(const Family& family);

}  // namespace blockscope
