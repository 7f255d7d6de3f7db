// DFlash and DFlash 2 drafts (arXiv 2602.06036): Qwen3's layers, run together with a target. There
// are two published layouts. z-lab's (`dflash/model.py`) has `dflash_config` among Qwen3's keys,
// and usually model_type qwen3. speculators' (`speculators/models/dflash`, `dflash2`) has Qwen3's
// keys under `transformer_layer_config`, and tensors of its own vocabulary.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "probe/checkpoint/config_keys.h"
#include "probe/checkpoint/draft_keys.h"
#include "probe/checkpoint/qwen_family.h"

namespace blockscope {
namespace {

constexpr std::string_view kDflashClasses[] = {"DFlashDraftModel", "DFlashSpeculator",
                                               kDflash2Class};
constexpr NeutralKey kInnerKeys[] = {{"mask_token"},  // the text of the mask, whose id is read
                                     {"attention_mode", "\"gqa\""},
                                     {"use_qk_norm", "true"},
                                     {"sample_from_anchor", "false"}};
// Keys that name the target or the trainer, or that the inner object or the target decides.
// lm_head and embed_tokens are both required, so tie_word_embeddings changes nothing.
constexpr NeutralKey kSpeculatorsKeys[] = {{"speculators_config"},
                                           {"speculators_version"},
                                           {"proposal_speculative_tokens"},
                                           {"has_no_defaults_at_init"},
                                           {"tie_word_embeddings"},
                                           {"dtype"},
                                           {"torch_dtype"},
                                           {"bos_token_id"},
                                           {"eos_token_id"},
                                           {"pad_token_id"},
                                           {"projector_type", "\"dflash\""},
                                           {"shift_label", "false"},
                                           // Of the other projector, and of the trainer.
                                           {"pure_draft_prefix_len"},
                                           {"emb_dim"},
                                           {"gru_hidden_dim"},
                                           {"lambda_base_start"},
                                           {"lambda_base_decay_ratio"},
                                           {"auf"}};
constexpr std::int64_t kMostLayers = 4096;
constexpr std::int64_t kMostBlock = 4096;
constexpr std::int64_t kLeastBlock = 2;  // the certain token, and one that is drafted

/// Reads a list of layer numbers and subtracts `shift` from each.
std::vector<std::int64_t> layer_list(const JsonObject& file, const std::string& key,
                                     std::int64_t shift) {
  std::vector<std::int64_t> layers;
  const nlohmann::json& list = file.raw().at(key);
  const std::string expected = fmt::format("a list of layer numbers from {} on", shift);
  if (!list.is_array() || list.empty()) file.fail(key, expected);
  for (const nlohmann::json& layer : list) {
    if (!layer.is_number_integer() || layer < shift || layer > kMostLayers)
      file.fail(key, expected);
    layers.push_back(layer.get<std::int64_t>() - shift);
    if (std::count(layers.begin(), layers.end(), layers.back()) > 1) {
      file.fail(key, "every layer once", "the draft reads the same features twice");
    }
  }
  return layers;
}

void require_dflash_number(const JsonObject& file, const char* key, std::int64_t expected) {
  const auto value = file.optional_integer(key, 0, std::numeric_limits<std::int32_t>::max());
  if (value && *value != expected) file.fail(key, fmt::format("{} or nothing", expected));
}

DraftConfig parse_speculators(const JsonObject& file, const ModelConfig& model) {
  const std::int64_t vocab_size = model.vocab_size;
  DraftConfig draft;
  draft.speculators = true;
  draft.own_vocabulary = true;
  draft.block_size = file.integer("block_size", kLeastBlock, kMostBlock);
  draft.mask_token_id = file.integer("mask_token_id", 0, vocab_size - 1);
  require_dflash_number(file, "target_hidden_size", model.hidden_size);
  draft.draft_vocab_size = file.integer("draft_vocab_size", 1, vocab_size);
  if (!file.has("aux_hidden_state_layer_ids")) {
    file.fail("aux_hidden_state_layer_ids", "a list of layer numbers");
  }
  // The file numbers hidden states, and the first one is the embedding.
  draft.target_layers = layer_list(file, "aux_hidden_state_layer_ids", 1);
  draft.from_anchor = file.optional_boolean("sample_from_anchor").value_or(false);
  draft.second = read_second(file, file, model, draft.block_size);
  if (!draft.second) return draft;
  // Like speculators' own DFlash2DraftModel.
  if (draft.from_anchor) {
    file.fail("sample_from_anchor", "false",
              "the selector of a DFlash 2 draft walks from the certain token");
  }
  if (draft.draft_vocab_size != vocab_size) {
    file.fail("draft_vocab_size", fmt::format("{}, the vocab_size", vocab_size),
              "the selector of a DFlash 2 draft has a row for every token of the target");
  }
  return draft;
}

JsonObject dflash_shape_keys(const JsonObject& file) {
  if (file.has("dflash_config")) return file;
  if (const auto inner = file.optional_object("transformer_layer_config")) return *inner;
  file.fail("transformer_layer_config", "an object with the draft's shape");
}

void refuse_other_drafts(const JsonObject& file) {
  const auto require_type = [](const JsonObject& object, const char* expected, const char* other) {
    const auto type = object.optional_string("model_type");
    if (type && *type != expected && *type != other) {
      object.fail("model_type", fmt::format("\"{}\"", expected),
                  "drafts with the layers of another model are not supported");
    }
  };
  if (file.has("dflash_config")) return require_type(file, "qwen3", "dflash");
  require_type(file, "speculator_model", "dflash");
  require_type(dflash_shape_keys(file), "qwen3", "dflash");
}

/// A draft may call itself qwen3, so its own keys decide.
bool is_dflash(const JsonObject& file, const std::optional<std::string>& architecture) {
  const std::string type = file.optional_string("speculators_model_type").value_or("");
  if (!file.has("dflash_config") && type != "dflash" && type != "dflash2") {
    if (file.has("speculators_model_type")) {
      file.fail("speculators_model_type", "\"dflash\" or \"dflash2\"",
                "drafts of other kinds are not supported");
    }
    return false;
  }
  if (file.has("dflash_config") && !type.empty()) {
    file.fail("speculators_model_type", "nothing with dflash_config",
              "they are keys of two layouts, z-lab's and speculators'");
  }
  if (architecture &&
      std::ranges::find(kDflashClasses, *architecture) == std::end(kDflashClasses)) {
    file.fail("architectures", fmt::format("[\"{}\"]", fmt::join(kDflashClasses, "\"] or [\"")),
              "drafts of other kinds are not supported");
  }
  if (!type.empty() && (type == "dflash2") != (architecture == kDflash2Class)) {
    file.fail("architectures",
              fmt::format("[\"{}\"] for speculators_model_type \"{}\"",
                          type == "dflash2" ? kDflash2Class : kDflashClasses[0], type));
  }
  refuse_other_drafts(file);
  return true;
}

DraftConfig parse_dflash(const JsonObject& file, const ModelConfig& model) {
  if (!file.has("dflash_config")) return parse_speculators(file, model);
  const std::int64_t vocab_size = model.vocab_size;
  const JsonObject keys = *file.optional_object("dflash_config");
  DraftConfig draft;
  draft.draft_vocab_size = vocab_size;
  require_dflash_number(file, "draft_vocab_size", vocab_size);
  const std::string block = "block_size";  // newer drafts have it in dflash_config
  const auto block_size = agreed_integer(file, keys, block, kLeastBlock, kMostBlock);
  if (!block_size) keys.fail(block, "an integer");
  draft.block_size = *block_size;
  const std::string mask = "mask_token_id";
  const auto mask_token_id = agreed_integer(file, keys, mask, 0, vocab_size - 1);
  if (!mask_token_id) keys.fail(mask, "an integer");
  draft.mask_token_id = *mask_token_id;
  draft.num_target_layers =
      agreed_integer(file, keys, "num_target_layers", 1, kMostLayers).value_or(0);
  if (keys.has("target_layer_ids")) {
    draft.target_layers = layer_list(keys, "target_layer_ids", 0);
  } else if (draft.num_target_layers > 0) {
    draft.target_layers = default_target_layers(draft.num_target_layers, model.num_layers);
  } else {
    keys.fail("target_layer_ids", "a list of layer numbers",
              "without it num_target_layers decides, but that key is missing, too");
  }
  draft.target_digest = keys.optional_string("target_digest").value_or("");
  for (const std::int64_t layer : draft.target_layers) {
    if (draft.num_target_layers > 0 && (layer < 0 || layer >= draft.num_target_layers)) {
      keys.fail("target_layer_ids",
                fmt::format("layers below num_target_layers = {}", draft.num_target_layers));
    }
  }
  read_factors(file, keys, draft);
  draft.second = read_second(file, keys, model, draft.block_size);
  keys.pass_over({"causal"});  // read_draft_windows() reads it
  refuse_unread_inner_keys(keys, kInnerKeys);
  return draft;
}

void read_dflash_layers(const ConfigFile& file, ModelConfig& config) {
  read_qwen_layers(file, config);
  config.draft = parse_dflash(file.whole, config);
  config.tie_word_embeddings = false;  // the key is the target's
  if (config.draft->from_anchor) config.logit_shift = 1;
}

void read_dflash_rope(const ConfigFile& file, ModelConfig& config, std::string& source) {
  read_common_rope(file, config, source);
  read_draft_windows(file, config);
}

void finish_dflash(const ConfigFile& file, ModelConfig& config) {
  // --block-length may make its blocks shorter.
  config.mask_token_id = {config.draft->mask_token_id, "config.json:mask_token_id"};
  if (!config.block_length) {
    config.block_length = {config.draft->longest_round(), config.draft->from_anchor
                                                              ? "config.json:block_size + 1"
                                                              : "config.json:block_size"};
  }
  if (!config.draft->speculators) return;
  refuse_unsupported(file.whole, file.family, config.num_layers);  // vLLM reads these keys, too
  refuse_unread_keys(file.whole, kSpeculatorsKeys);
}

void record_dflash(const ConfigFile&, ModelConfig& config) {
  const DraftConfig& draft = *config.draft;
  add_resolved(config, "draft_block_size", draft.block_size, "config.json:block_size");
  add_resolved(config, "draft_mask_token_id", draft.mask_token_id, "config.json:mask_token_id");
  add_resolved(config, "draft_target_layers", draft.target_layers,
               draft.speculators ? "config.json:aux_hidden_state_layer_ids, from 0"
                                 : "config.json:dflash_config or num_target_layers");
  add_resolved(config, "draft_vocab_size", draft.draft_vocab_size,
               draft.speculators ? "config.json:draft_vocab_size" : "the target's vocabulary");
  record_draft_keys(config);
}

/// The config.json of a trained draft, in z-lab's layout.
nlohmann::ordered_json dflash_config_json(const Family& family, const ModelConfig& config,
                                          const TrainedTokens& tokens) {
  nlohmann::ordered_json keys = qwen_config_json(qwen3_family(), config, tokens);
  const DraftConfig& draft = *config.draft;
  keys["architectures"] = nlohmann::ordered_json::array({family.architectures.front()});
  keys["block_size"] = draft.block_size;
  keys["dflash_config"] = {{"mask_token_id", draft.mask_token_id},
                           {"target_layer_ids", draft.target_layers},
                           {"target_digest", draft.target_digest}};
  keys["num_target_layers"] = draft.num_target_layers;
  return keys;
}

}  // namespace

std::vector<std::int64_t> default_target_layers(std::int64_t num_target_layers,
                                                std::int64_t num_layers) {
  if (num_layers == 1) return {num_target_layers / 2};
  std::vector<std::int64_t> layers;
  const double span = static_cast<double>(num_target_layers - 4);
  for (std::int64_t i = 0; i < num_layers; ++i) {
    // Python's round: halves go to the even neighbour, as nearbyint's do.
    layers.push_back(static_cast<std::int64_t>(
        std::nearbyint(1.0 + static_cast<double>(i) * span / static_cast<double>(num_layers - 1))));
  }
  return layers;
}

Family dflash_family() {
  Family family;
  family.name = "dflash";
  family.architectures = {std::begin(kDflashClasses), std::end(kDflashClasses)};
  family.meaning =
      "DFlash and DFlash 2 drafts, recognised by dflash_config or speculators_model_type";
  family.source =
      "DFlash, arXiv 2602.06036; dflash/model.py:DFlashDraftModel and DFlash2DraftModel";
  family.example = "capture Qwen/Qwen3-8B --draft z-lab/Qwen3-8B-DFlash-b16";
  family.refuses = "drafts of other kinds, other layers than Qwen3's, attention sinks";
  family.draft = true;
  family.mask_keys = family.block_length_keys = {};  // finish_dflash() sets both
  family.weights.embed = "embed_tokens.weight";      // this and lm_head only in speculators' layout
  family.weights.norm = "norm.weight";
  family.weights.layer = "layers.{}.";
  // The last two are keys of the inner object, which is_dflash() has read.
  family.neutral_keys = {{"is_causal", "false"}, {"architectures"}, {"model_type"}};
  family.claims = is_dflash;
  family.shape_keys = dflash_shape_keys;
  family.read_layers = read_dflash_layers;
  family.read_rope = read_dflash_rope;
  family.layer_kinds = true;
  family.finish = finish_dflash;
  family.record = record_dflash;
  family.training = {.target = "qwen3", .config_json = dflash_config_json};
  return family;
}

}  // namespace blockscope
