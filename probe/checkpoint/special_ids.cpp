// See special_ids.h.
#include "probe/checkpoint/special_ids.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "probe/checkpoint/config_limits.h"

namespace blockscope {
namespace {

using nlohmann::json;

std::optional<std::int64_t> parse_single_id(const JsonObject& file, const std::string& key,
                                            ModelConfig& config) {
  const auto id = file.optional_integer(key, -kMaxId, kMaxId);
  if (!id || (*id >= 0 && *id < config.vocab_size)) return id;
  config.warnings.push_back(
      fmt::format("config.json:{} = {} is outside the vocabulary of {} and is ignored", key, *id,
                  config.vocab_size));
  return std::nullopt;
}

/// nullopt if the file names none.
std::optional<std::vector<std::int64_t>> parse_stop_ids(const JsonObject& file,
                                                        std::int64_t vocab_size) {
  const std::string key = "eos_token_id";
  if (!file.has(key)) return std::nullopt;
  const json& value = file.raw().at(key);
  const json list = value.is_array() ? value : json::array({value});
  std::vector<std::int64_t> ids;
  for (const json& id : list) {
    if (!id.is_number_integer() || id < 0 || id >= vocab_size) {
      file.fail(key, fmt::format("an id from 0 to {} or a list of them", vocab_size - 1),
                "use the end token's id in the tokenizer, or leave the key out and pass --stop-id");
    }
    const auto number = id.get<std::int64_t>();
    if (std::find(ids.begin(), ids.end(), number) == ids.end()) ids.push_back(number);
  }
  return ids;
}

}  // namespace

std::string resolve_special_ids(const ConfigFile& file, ModelConfig& config) {
  config.bos_token_id = parse_single_id(file.keys, "bos_token_id", config);
  config.pad_token_id = parse_single_id(file.keys, "pad_token_id", config);
  std::optional<std::vector<std::int64_t>> in_config;
  if (file.family.stops_in_generation_config) {
    file.keys.pass_over({"eos_token_id"});
  } else {
    in_config = parse_stop_ids(file.keys, config.vocab_size);
  }
  // generation_config.json wins if it names an EOS, as in `transformers`' generate.
  if (file.generation) {
    if (auto ids = parse_stop_ids(*file.generation, config.vocab_size)) {
      config.stop_token_ids = std::move(*ids);
      return "generation_config.json:eos_token_id";
    }
  }
  if (!in_config) return "not given";
  config.stop_token_ids = *in_config;
  return "config.json:eos_token_id";
}

}  // namespace blockscope
