// See block_diffusion_config.h.
#include "probe/checkpoint/block_diffusion_config.h"

#include <fmt/format.h>

#include <array>
#include <string_view>
#include <utility>

#include "probe/checkpoint/config_limits.h"

#include "decode_record/base/error.h"

namespace blockscope {

namespace {

using nlohmann::json;
using Values = std::vector<Resolved<std::int64_t>>;

constexpr std::string_view kCommandLine = "command line";  // prefix of the names of such sources
constexpr std::array<const char*, 2> kSideMaskKeys = {"mask_token_id", "mask_id"};
constexpr std::array<const char*, 3> kSideBlockKeys = {"block_size", "block_length", "bd_size"};

void add_integer(const JsonObject& object, const std::string& file, const std::string& key,
                 std::int64_t low, Values& values) {
  if (const auto value = object.optional_integer(key, low, kMaxId)) {
    values.push_back({*value, file + ":" + key});
  }
}

void add_side_files(const ConfigTexts& texts, Values& masks, Values& blocks) {
  const std::array<std::pair<const char*, const std::optional<std::string>*>, 2> files = {
      {{"block_diffusion.json", &texts.block_diffusion}, {"dlm_config.json", &texts.dlm_config}}};
  for (const auto& [name, text] : files) {
    if (!*text) continue;
    const JsonObject object = JsonObject::parse(**text, texts.place_of(name));
    for (const char* key : kSideMaskKeys) add_integer(object, name, key, 0, masks);
    for (const char* key : kSideBlockKeys) add_integer(object, name, key, 1, blocks);
  }
}

// {"<|MASK|>": 151669, ...}
void add_from_added_tokens(const ConfigTexts& texts, const std::string& token, Values& masks) {
  if (!texts.added_tokens) return;
  const JsonObject object =
      JsonObject::parse(*texts.added_tokens, texts.place_of("added_tokens.json"));
  add_integer(object, "added_tokens.json", token, 0, masks);
}

// {"added_tokens_decoder": {"151669": {"content": "<|MASK|>", ...}, ...}, ...}
void add_from_tokenizer_config(const ConfigTexts& texts, const std::string& token, Values& masks) {
  if (!texts.tokenizer_config) return;
  const JsonObject object =
      JsonObject::parse(*texts.tokenizer_config, texts.place_of("tokenizer_config.json"));
  const auto decoder = object.optional_object("added_tokens_decoder");
  if (!decoder) return;
  for (const auto& [id, entry] : decoder->raw().items()) {
    if (!entry.is_object() || !entry.contains("content") || entry["content"] != token) continue;
    const bool digits =
        !id.empty() && id.size() < 10 && id.find_first_not_of("0123456789") == std::string::npos;
    if (!digits) decoder->fail(id, "a token id as key");
    masks.push_back({std::stoll(id), "tokenizer_config.json:" + token});
  }
}

// {"added_tokens": [{"id": 151669, "content": "<|MASK|>", ...}, ...], "model": ...}
void add_from_tokenizer(const ConfigTexts& texts, const std::string& token, Values& masks) {
  if (!texts.tokenizer) return;
  const std::string where = texts.place_of("tokenizer.json");
  // Keeps added_tokens only, because the vocabulary and the merges are megabytes.
  const JsonObject object = JsonObject::parse(*texts.tokenizer, where, "added_tokens");
  if (!object.has("added_tokens")) return;
  const json& list = object.raw().at("added_tokens");
  if (!list.is_array()) object.fail("added_tokens", "a list");
  for (const json& entry : list) {
    if (!entry.is_object() || !entry.contains("content") || entry["content"] != token) continue;
    const JsonObject added(entry, where + ":added_tokens");
    masks.push_back({added.integer("id", 0, kMaxId), "tokenizer.json:" + token});
  }
}

/// The first value. Throws if another source has a different one.
std::optional<Resolved<std::int64_t>> agreed(const Values& values, const std::string& folder,
                                             const std::string& what, const std::string& flag) {
  if (values.empty()) return std::nullopt;
  for (const auto& other : values) {
    if (other.value == values.front().value) continue;
    throw CheckpointError(fmt::format(
        "{}: the {} is contradictory: {} says {}, {} says {}. HINT: decide with {}", folder, what,
        values.front().source, values.front().value, other.source, other.value, flag));
  }
  return values.front();
}

void check_range(const Resolved<std::int64_t>& value, std::int64_t low, std::int64_t high,
                 const std::string& folder, const std::string& what, const std::string& flag) {
  if (value.value >= low && value.value <= high) return;
  const std::string message =
      fmt::format("{}: {} from {}: expected {} to {}, got {}. HINT: ", folder, what, value.source,
                  low, high, value.value);
  if (value.source.starts_with(kCommandLine)) {
    throw UsageError(message + "give a value in this range, or leave " + flag + " out");
  }
  throw CheckpointError(message + "decide with " + flag);
}

}  // namespace

void resolve_block_diffusion(const ConfigTexts& texts, const JsonObject& config_json,
                             const Family& family, const ModelOverrides& overrides,
                             ModelConfig& config) {
  const std::string folder = texts.folder.empty() ? "checkpoint" : texts.folder;
  Values masks;
  Values blocks;
  const bool autoregressive = family.attention == FamilyAttention::causal;
  if (autoregressive) {
    // The file's values are ignored: the model was trained to predict one token after the other.
    config_json.pass_over({"mask_token_id", "block_size", "block_length"});
  } else {
    for (const std::string& key : family.mask_keys) {
      add_integer(config_json, "config.json", key, 0, masks);
    }
    for (const std::string& key : family.block_length_keys) {
      add_integer(config_json, "config.json", key, 1, blocks);
    }
    add_side_files(texts, masks, blocks);
    add_from_added_tokens(texts, family.mask_token, masks);
    add_from_tokenizer_config(texts, family.mask_token, masks);
    add_from_tokenizer(texts, family.mask_token, masks);
  }

  if (overrides.mask_token_id) {
    config.mask_token_id = {*overrides.mask_token_id, overrides.mask_source};
  } else if (auto found = agreed(masks, folder, "mask token id", "--mask-token-id")) {
    config.mask_token_id = std::move(found);
  } else if (family.default_mask_token_id && *family.default_mask_token_id < config.vocab_size) {
    config.mask_token_id = {*family.default_mask_token_id, kTableSource};
  }
  if (overrides.block_length) {
    config.block_length = {*overrides.block_length, overrides.block_source};
  } else if (auto found = agreed(blocks, folder, "block length", "--block-length")) {
    config.block_length = std::move(found);
  } else if (family.default_block_length) {
    config.block_length = {*family.default_block_length, kTableSource};
  }

  if (config.mask_token_id) {
    check_range(*config.mask_token_id, 0, config.vocab_size - 1, folder, "mask token id",
                "--mask-token-id");
  }
  if (config.block_length) {
    check_range(*config.block_length, 1, config.max_position_embeddings, folder, "block length",
                "--block-length");
  }
  const bool one_flag_only =
      overrides.mask_token_id.has_value() != overrides.block_length.has_value();
  if (family.causal_only && (overrides.mask_token_id || overrides.block_length)) {
    throw UsageError(fmt::format(
        "{}: model_type \"{}\" runs token by token only, got --mask-token-id or --block-length. "
        "HINT: leave both out; `blockscope help family {}` says why",
        folder, family.name, family.name));
  }
  if (autoregressive && one_flag_only) {
    throw UsageError(fmt::format(
        "{}: model_type \"{}\" is autoregressive; to run it with block-causal masks both "
        "--mask-token-id and --block-length are needed, got only one",
        folder, family.name));
  }
  config.attention_causal = autoregressive && !config.mask_token_id;

  // The command line wins. Warnings show what it overrides.
  for (const auto& other : masks) {
    if (overrides.mask_token_id && other.value != *overrides.mask_token_id) {
      config.warnings.push_back(fmt::format("{} {} overrides {} of {}", overrides.mask_source,
                                            *overrides.mask_token_id, other.value, other.source));
    }
  }
  for (const auto& other : blocks) {
    if (overrides.block_length && other.value != *overrides.block_length) {
      config.warnings.push_back(fmt::format("{} {} overrides {} of {}", overrides.block_source,
                                            *overrides.block_length, other.value, other.source));
    }
  }
}

}  // namespace blockscope
