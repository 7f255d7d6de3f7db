// See rope_config.h. Defaults and precedence follow transformers 5 `RotaryEmbeddingConfigMixin`.
#include "probe/checkpoint/rope_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "probe/checkpoint/config_limits.h"
#include "probe/checkpoint/family_table.h"

#include "decode_record/base/error.h"

namespace blockscope {

namespace {

// Limits far above any published value, so powers and logarithms stay finite in double.
constexpr double kSmallest = 1e-6;

// The proportional type is read by its family alone (diffusion_gemma_family.cpp).
constexpr std::array<std::pair<std::string_view, RopeType>, 5> kTypes = {
    {{"default", RopeType::kDefault},
     {"linear", RopeType::kLinear},
     {"dynamic", RopeType::kDynamic},
     {"yarn", RopeType::kYarn},
     {"llama3", RopeType::kLlama3}}};

RopeType parse_type(const JsonObject& rope) {
  const auto new_name = rope.optional_string("rope_type");
  const auto old_name = rope.optional_string("type");
  if (new_name && old_name && *new_name != *old_name) {
    rope.fail("type", fmt::format("\"{}\" as under rope_type", *new_name));
  }
  const std::string name = new_name ? *new_name : old_name.value_or("default");
  for (const auto& [text, type] : kTypes) {
    if (text == name) return type;
  }
  rope.fail(new_name ? "rope_type" : "type", "default, linear, dynamic, yarn or llama3",
            "other RoPE variants would give wrong logits and are refused");
}

void refuse_partial_rotary(const JsonObject& object) {
  const auto part = object.optional_number("partial_rotary_factor", 0.0, 1.0);
  if (part && *part != 1.0) {
    object.fail("partial_rotary_factor", "1.0 or nothing",
                "partial RoPE is not supported in this family");
  }
}

/// int(head_dim * partial_rotary_factor), as in transformers. The factor is a key of config.json
/// or, since version 5, of rope_parameters. The key `rotary_dim` repeats the product.
std::int64_t parse_rotary_dim(const JsonObject& config_json, const std::optional<JsonObject>& rope,
                              std::int64_t head_dim) {
  const std::string key = "partial_rotary_factor";
  auto part = config_json.optional_number(key, 0.0, 1.0);
  if (const auto inner = rope ? rope->optional_number(key, 0.0, 1.0) : std::nullopt) {
    if (part && *part != *inner) rope->fail(key, fmt::format("{} as outside of it", *part));
    part = inner;
  }
  if (!part) config_json.fail(key, "a number above 0, up to 1");
  const auto dim = static_cast<std::int64_t>(static_cast<double>(head_dim) * *part);
  if (dim < 2 || dim % 2 != 0) {
    config_json.fail(key, fmt::format("an even number of the {} channels of a head", head_dim));
  }
  const auto named = config_json.optional_integer("rotary_dim", 0, kMaxPositions);
  if (named && *named != dim) {
    config_json.fail("rotary_dim", fmt::format("{}, head_dim times {}", dim, key));
  }
  return dim;
}

/// Refuses keys of another RoPE type, and keys that this version does not know.
void refuse_unread(const JsonObject& rope, RopeType type) {
  for (const std::string& key : rope.unread()) {
    rope.fail(key, fmt::format("no such key for rope type \"{}\"", rope_type_name(type)),
              "a key that is not honoured is refused, because it could change the logits");
  }
}

/// The object with the scaling keys, if there is one. As in transformers 5, a non-empty
/// `rope_scaling` is the older spelling of `rope_parameters`. If both are given, they must be
/// equal.
std::optional<JsonObject> find_rope_object(const JsonObject& config_json) {
  const auto parameters = config_json.optional_object("rope_parameters");
  const auto scaling = config_json.optional_object("rope_scaling");
  const bool has_scaling = scaling && !scaling->raw().empty();
  if (parameters && has_scaling && parameters->raw() != scaling->raw()) {
    config_json.fail("rope_scaling", "the same as rope_parameters, or only one of the two");
  }
  return has_scaling ? scaling : parameters;
}

double parse_theta(const JsonObject& config_json, const std::optional<JsonObject>& rope,
                   std::optional<double> by_default, std::string& source) {
  const auto top = config_json.optional_number("rope_theta", 1.0 + kSmallest, kMaxTheta);
  std::optional<double> inner;
  if (rope) inner = rope->optional_number("rope_theta", 1.0 + kSmallest, kMaxTheta);
  if (top && inner && *top != *inner) {
    config_json.fail("rope_theta", fmt::format("{} as in the rope parameters", *inner));
  }
  source = "config.json:rope_theta";
  if (!top && !inner) {
    if (by_default) {
      source = kTableSource;
      return *by_default;
    }
    config_json.fail("rope_theta", "a number",
                     "add \"rope_theta\" to config.json (transformers would take 10000.0)");
  }
  return inner ? *inner : *top;
}

void parse_yarn(const JsonObject& rope, RopeConfig& result) {
  result.attention_factor = rope.optional_number("attention_factor", 0.0, kMaxFactor);
  // As in transformers, 0 counts as "not given" for these two.
  const double fast = rope.optional_number("beta_fast", 0.0, kMaxFactor).value_or(0.0);
  const double slow = rope.optional_number("beta_slow", 0.0, kMaxFactor).value_or(0.0);
  if (fast != 0.0) result.beta_fast = fast;
  if (slow != 0.0) result.beta_slow = slow;
  if (result.beta_fast < result.beta_slow) {
    rope.fail("beta_fast", fmt::format("at least beta_slow ({})", result.beta_slow));
  }
  result.mscale = rope.optional_number("mscale", 0.0, kMaxFactor);
  result.mscale_all_dim = rope.optional_number("mscale_all_dim", 0.0, kMaxFactor);
  result.truncate = rope.optional_boolean("truncate").value_or(true);
}

void parse_llama3(const JsonObject& rope, RopeConfig& result) {
  result.low_freq_factor = rope.number("low_freq_factor", kSmallest, kMaxFactor);
  result.high_freq_factor = rope.number("high_freq_factor", kSmallest, kMaxFactor);
  if (result.high_freq_factor <= result.low_freq_factor) {
    rope.fail("high_freq_factor",
              fmt::format("more than low_freq_factor ({})", result.low_freq_factor));
  }
}

/// The pretraining length: the top-level key, else the scaling key, else max_position_embeddings.
std::int64_t parse_original_length(const JsonObject& config_json, const JsonObject& rope,
                                   RopeType type, std::int64_t max_positions) {
  // Dynamic NTK uses max_position_embeddings itself.
  if (type == RopeType::kDynamic) return max_positions;
  const std::string key = "original_max_position_embeddings";
  const auto top = config_json.optional_integer(key, 1, kMaxPositions);
  const auto inner = rope.optional_integer(key, 1, kMaxPositions);
  return top ? *top : inner.value_or(max_positions);
}

/// Ministral's keys. transformers repeats max_position_embeddings among them.
void parse_query_scaling(const JsonObject& rope, const ModelConfig& config, RopeConfig& result) {
  const auto length = rope.optional_integer("max_position_embeddings", 1, kMaxPositions);
  if (length && *length != config.max_position_embeddings) {
    rope.fail("max_position_embeddings",
              fmt::format("{} as outside of it", config.max_position_embeddings));
  }
  const std::string key = "llama_4_scaling_beta";
  result.query_scaling_beta = rope.optional_number(key, 0.0, kMaxFactor).value_or(0.0);
  if (result.query_scaling_beta != 0.0 && !rope.has("original_max_position_embeddings")) {
    rope.fail("original_max_position_embeddings", "an integer", key + " counts in it");
  }
}

/// Reads everything but theta and the type, for a type other than the default.
void parse_scaling(const JsonObject& config_json, const JsonObject& rope, const ModelConfig& config,
                   RopeConfig& result) {
  const auto length = config.max_position_embeddings;
  result.original_max_position_embeddings =
      parse_original_length(config_json, rope, result.type, length);
  // YaRN allows "factor": null, which means the ratio of the two lengths.
  const bool derive = result.type == RopeType::kYarn && rope.raw().contains("factor") &&
                      rope.raw().at("factor").is_null();
  result.factor = derive ? static_cast<double>(length) /
                               static_cast<double>(result.original_max_position_embeddings)
                         : rope.number("factor", kSmallest, kMaxFactor);
  if (result.type == RopeType::kYarn) parse_yarn(rope, result);
  if (result.type == RopeType::kLlama3) parse_llama3(rope, result);
  // The exponent is dim / (dim - 2).
  const std::int64_t dim = result.rotary_dim > 0 ? result.rotary_dim : config.head_dim;
  if (result.type == RopeType::kDynamic && dim < 4) {
    config_json.fail("head_dim", "at least 4 rotating channels for dynamic RoPE scaling");
  }
}

}  // namespace

std::string_view rope_type_name(RopeType type) {
  for (const auto& [text, known] : kTypes) {
    if (known == type) return text;
  }
  return type == RopeType::kProportional ? "proportional" : "default";
}

void read_common_rope(const ConfigFile& file, ModelConfig& config, std::string& source) {
  config.rope = parse_rope_config(file, config, source);
}

RopeConfig parse_rope_config(const ConfigFile& file, const ModelConfig& config,
                             std::string& source) {
  const JsonObject& config_json = file.keys;
  const bool partial = file.family.partial_rotary;
  if (!partial) refuse_partial_rotary(config_json);
  const auto rope = find_rope_object(config_json);
  RopeConfig result;
  if (partial) result.rotary_dim = parse_rotary_dim(config_json, rope, config.head_dim);
  result.theta = parse_theta(config_json, rope, file.family.default_rope_theta, source);
  if (!rope) return result;
  const bool old_spelling =
      config_json.has("rope_scaling") && !config_json.raw().at("rope_scaling").empty();
  source = old_spelling ? "config.json:rope_scaling" : "config.json:rope_parameters";

  result.type = parse_type(*rope);
  if (!partial) refuse_partial_rotary(*rope);
  if (result.type != RopeType::kDefault) parse_scaling(config_json, *rope, config, result);
  if (file.family.query_scaling && result.type != RopeType::kDefault) {
    parse_query_scaling(*rope, config, result);
  }
  refuse_unread(*rope, result.type);
  return result;
}

}  // namespace blockscope
