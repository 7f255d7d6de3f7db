#include "probe/checkpoint/draft_config.h"

#include <fmt/format.h>

#include <cmath>
#include <string>
#include <utility>

namespace blockscope {
namespace {

constexpr std::int64_t kMostLayers = 4096;
constexpr std::int64_t kMostBlock = 4096;

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
  }
  return layers;
}

DraftConfig parse_speculators(const JsonObject& file, std::int64_t vocab_size) {
  DraftConfig draft;
  draft.speculators = true;
  draft.own_vocabulary = true;
  draft.block_size = file.integer("block_size", 1, kMostBlock);
  draft.mask_token_id = file.integer("mask_token_id", 0, vocab_size - 1);
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

DraftConfig parse_draft_config(const JsonObject& file, std::int64_t num_layers,
                               std::int64_t vocab_size) {
  if (!file.has("dflash_config")) return parse_speculators(file, vocab_size);
  const JsonObject keys = *file.optional_object("dflash_config");
  DraftConfig draft;
  draft.draft_vocab_size = vocab_size;
  // Newer drafts keep it among the others.
  const JsonObject& holder = file.has("block_size") ? file : keys;
  draft.block_size = holder.integer("block_size", 1, kMostBlock);
  draft.mask_token_id = keys.integer("mask_token_id", 0, vocab_size - 1);
  draft.num_target_layers = file.optional_integer("num_target_layers", 1, kMostLayers).value_or(0);
  if (keys.has("target_layer_ids")) {
    draft.target_layers = layer_list(keys, "target_layer_ids", 0);
  } else if (draft.num_target_layers > 0) {
    draft.target_layers = default_target_layers(draft.num_target_layers, num_layers);
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
  return draft;
}

}  // namespace blockscope
