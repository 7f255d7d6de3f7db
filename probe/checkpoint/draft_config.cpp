#include "probe/checkpoint/draft_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "probe/checkpoint/config_keys.h"
#include "probe/checkpoint/model_config.h"

namespace blockscope {
namespace {

constexpr std::int64_t kMostLayers = 4096;
constexpr std::int64_t kMostBlock = 4096;
constexpr std::int64_t kLeastBlock = 2;  // the certain token, and one that is drafted

/// A list of layer numbers, `shift` less than they stand in the file.
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

/// A key that may stand in either object, or in both with one value.
std::optional<std::int64_t> agreed_integer(const JsonObject& file, const JsonObject& keys,
                                           const std::string& key, std::int64_t low,
                                           std::int64_t high) {
  const auto outer = file.optional_integer(key, low, high);
  const auto inner = keys.optional_integer(key, low, high);
  if (outer && inner && *outer != *inner)
    keys.fail(key, fmt::format("{} as outside of it", *outer));
  return outer ? outer : inner;
}

void require_number(const JsonObject& file, const char* key, std::int64_t expected) {
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
  require_number(file, "target_hidden_size", model.hidden_size);
  draft.draft_vocab_size = file.integer("draft_vocab_size", 1, vocab_size);
  if (!file.has("aux_hidden_state_layer_ids")) {
    file.fail("aux_hidden_state_layer_ids", "a list of layer numbers");
  }
  // Numbers of hidden states there, of which the first is the embedding's.
  draft.target_layers = layer_list(file, "aux_hidden_state_layer_ids", 1);
  if (file.optional_boolean("sample_from_anchor").value_or(false)) {
    file.fail("sample_from_anchor", "false", "drafts whose first row predicts too are not run");
  }
  return draft;
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

bool is_draft(const JsonObject& file) {
  return file.has("dflash_config") ||
         file.optional_string("speculators_model_type").value_or("") == "dflash";
}

JsonObject draft_shape_keys(const JsonObject& file) {
  if (file.has("dflash_config")) return file;
  if (const auto inner = file.optional_object("transformer_layer_config")) return *inner;
  file.fail("transformer_layer_config", "an object with the draft's shape");
}

void refuse_other_drafts(const JsonObject& file) {
  const auto require_type = [](const JsonObject& object, const char* expected, const char* other) {
    const auto type = object.optional_string("model_type");
    if (type && *type != expected && *type != other) {
      object.fail("model_type", fmt::format("\"{}\"", expected),
                  "drafts with the layers of another model are not run");
    }
  };
  if (file.has("dflash_config")) return require_type(file, "qwen3", "dflash");
  require_type(file, "speculator_model", "dflash");
  require_type(draft_shape_keys(file), "qwen3", "dflash");
}

DraftConfig parse_draft_config(const JsonObject& file, const ModelConfig& model) {
  if (!file.has("dflash_config")) return parse_speculators(file, model);
  const std::int64_t vocab_size = model.vocab_size;
  const JsonObject keys = *file.optional_object("dflash_config");
  DraftConfig draft;
  draft.draft_vocab_size = vocab_size;
  require_number(file, "draft_vocab_size", vocab_size);
  const std::string block = "block_size";  // newer drafts keep it among the others
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
              "without it num_target_layers decides, which isn't there either");
  }
  draft.target_digest = keys.optional_string("target_digest").value_or("");
  for (const std::int64_t layer : draft.target_layers) {
    if (draft.num_target_layers > 0 && (layer < 0 || layer >= draft.num_target_layers)) {
      keys.fail("target_layer_ids",
                fmt::format("layers below num_target_layers = {}", draft.num_target_layers));
    }
  }
  refuse_unread_keys(keys, "dflash_config");
  return draft;
}

}  // namespace blockscope
