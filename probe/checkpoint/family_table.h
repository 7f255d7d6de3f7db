// The model families: one entry each, in the family's own file, and the list of them in
// family_table.cpp. What reads a config.json, names weights, decodes, trains and explains
// (`blockscope help family`) asks the entry; nothing else knows a family by its name. An entry that
// says nothing more is block-causal, with the keys of config.json and the weight names of Qwen3.
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
/// every position sees all others, and blocks count from the prompt's end.
enum class FamilyAttention { block_causal, causal, bidirectional };

/// A config.json as its family reads it.
struct ConfigFile {
  const Family& family;
  JsonObject whole;
  JsonObject keys;  // with the model's shape: `whole`, or an object in it

  /// Where the value of a key of transformers came from; the family may call it otherwise.
  std::string source(const std::string& key) const;
};

/// Adds a line to what was resolved.
void add_resolved(ModelConfig& config, const std::string& key, const nlohmann::json& value,
                  const std::string& source);
inline constexpr const char* kTableSource = "architecture table";  ///< the entry says so

/// Ids of tokens with a role in the trainer's tokenizer.
struct TrainedTokens {
  std::int64_t mask = 0;
  std::int64_t end = 0;
};

/// How `blockscope train` makes a model of the family.
struct FamilyTraining {
  bool by_name = false;    // --family offers it
  std::string backbone{};  // the family of the first stage, and while it is trained; empty: this
  std::string target{};    // of a draft: the family of its targets
  /// Fits the trainer's default shapes to the family. Throws UsageError.
  void (*fit)(ModelConfig& shapes) = [](ModelConfig&) {};
  /// The config.json of what was trained; null: nothing is.
  nlohmann::ordered_json (*config_json)(const Family&, const ModelConfig&,
                                        const TrainedTokens&) = nullptr;
};

/// The keys of transformers' Qwen2 and Qwen3 (`configuration_qwen2.py`, `configuration_qwen3.py`,
/// `configuration_qwen3_moe.py`). All throw CheckpointError naming the key.
void read_qwen_shape(const ConfigFile& file, ModelConfig& config);   // sizes, heads, norm
void read_qwen_layers(const ConfigFile& file, ModelConfig& config);  // tying, experts, biases

struct Family {
  std::string name;                        // `model_type` in config.json
  std::vector<std::string> architectures;  // accepted class names; the first is the default
  std::string meaning;                     // one sentence
  std::string source;                      // file and function of the published code
  std::string example{};                   // what is given to `blockscope`
  std::string refusal{};                   // why it is not run; empty: it is run
  std::string refuses{};                   // what the entry's functions refuse, for people

  FamilyAttention attention = FamilyAttention::block_causal;
  std::int64_t logit_shift = 0;       // 1: the logits of position p predict position p + 1
  std::int64_t sub_block_length = 0;  // filled before the next ones, by default; 0: none
  bool draft = false;                 // runs together with a target (draft_config.h)
  bool qk_norm = true;
  bool qkv_bias = false;                // always on q, k and v, never on o
  bool experts = false;                 // layers may hold experts (moe_config.h)
  bool partial_rotary = false;          // partial_rotary_factor of a head turns
  bool rotates_in_float32 = false;      // q and k are rotated before they are rounded
  bool norm_weight_first = false;       // norms are rounded after the weight, not before it too
  std::int64_t default_head_dim = 128;  // where the key is absent; 0: hidden_size / heads

  std::vector<std::string> mask_keys{"mask_token_id"};  // keys of the mask id
  std::vector<std::string> block_length_keys{"block_size", "block_length"};
  std::string mask_token{};  // the mask token's text in the tokenizer
  std::optional<std::int64_t> default_mask_token_id{};
  std::optional<std::int64_t> default_block_length{};

  WeightNames weights{};
  std::map<std::string, std::string> keys{};  // by those of transformers, where they differ
  std::vector<NeutralKey> neutral_keys{};     // and those of all families (config_keys.h)

  /// Whether the file is of the family, whatever it calls itself. Throws CheckpointError.
  bool (*claims)(const JsonObject& whole, const std::optional<std::string>& architecture) = nullptr;
  JsonObject (*shape_keys)(const JsonObject& whole) = [](const JsonObject& whole) { return whole; };
  void (*read_shape)(const ConfigFile&, ModelConfig&) = read_qwen_shape;
  void (*read_layers)(const ConfigFile&, ModelConfig&) = read_qwen_layers;
  /// After everything else was read.
  void (*finish)(const ConfigFile&, ModelConfig&) = [](const ConfigFile&, ModelConfig&) {};
  /// Adds to `resolved` what only this family has.
  void (*record)(const ConfigFile&, ModelConfig&) = [](const ConfigFile&, ModelConfig&) {};

  FamilyTraining training{};

  /// What the family calls a key of transformers.
  const std::string& key(const std::string& transformers_key) const;
};

const std::vector<Family>& family_table();
/// The names of those that `which` holds for.
std::vector<std::string> families_with(bool (*which)(const Family&));
/// By `model_type`. Throws CheckpointError for an unknown one.
const Family& family_named(std::string_view name);
const Family& family_of(const ModelConfig& config);
/// The family that this one is the backbone of, or itself.
const Family& trained_from(const Family& backbone);
/// Names the family in `config`, and fills what it decides for all its models.
void set_family(const Family& family, ModelConfig& config);

/// The family of a config.json, by `model_type` and `architectures`, which must agree. Throws
/// CheckpointError for a family that is known and refused, and for an unknown one, listing what is
/// supported.
const Family& find_family(const JsonObject& config);

/// What the entry decides, as (what, value) for people: `blockscope help family NAME`.
std::vector<std::pair<std::string, std::string>> family_facts(const Family& family);

}  // namespace blockscope
