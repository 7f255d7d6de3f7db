#include "probe/checkpoint/family_table.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "decode_record/base/error.h"

namespace blockscope {

// Each is defined in its family's file.
Family sdar_family();
Family sdar_moe_family();
Family qwen2_family();
Family qwen3_family();
Family qwen3_moe_family();
Family llama_family();
Family stable_diffcoder_family();
Family a2d_qwen2_family();
Family a2d_qwen3_family();
Family nemotron_family();
Family wedlm_family();
Family llada_family();
Family dream_family();
Family llada2_moe_family();
Family llada2_moe_veomni_family();
Family fast_dllm_v2_family();
Family diffusion_gemma_family();
Family dflash_family();

namespace {

std::string supported_list() {
  std::string text;
  for (const Family& family : family_table()) {
    if (!family.refusal.empty()) continue;
    text += fmt::format("{}\"{}\" ({})", text.empty() ? "" : ", ", family.name,
                        family.architectures.front());
  }
  return text;
}

const Family* by_architecture(const std::string& name) {
  for (const Family& family : family_table()) {
    const auto& names = family.architectures;
    if (std::find(names.begin(), names.end(), name) != names.end()) return &family;
  }
  return nullptr;
}

const Family* by_model_type(const std::string& name) {
  for (const Family& family : family_table()) {
    if (family.name == name) return &family;
  }
  return nullptr;
}

std::optional<std::string> first_architecture(const JsonObject& config) {
  if (!config.has("architectures")) return std::nullopt;
  const auto& list = config.raw().at("architectures");
  if (!list.is_array() || list.empty() || !list.front().is_string()) {
    config.fail("architectures", "a list of class names");
  }
  return list.front().get<std::string>();
}

void refuse(const JsonObject& config, const Family& family) {
  throw CheckpointError(fmt::format(
      "{}: expected a supported family, got \"{}\": the family is known but not supported by this "
      "version: {}. HINT: use one of {}",
      config.where(), family.name, family.refusal, supported_list()));
}

std::string attention_text(const Family& family) {
  if (family.draft) return "a draft sees its own block and features of its target's layers";
  switch (family.attention) {
    case FamilyAttention::causal:
      if (family.causal_only) return "causal, token by token";
      return "causal; block-causal with --mask-token-id and --block-length";
    case FamilyAttention::bidirectional:
      return "bidirectional: every position sees all others; blocks count from the prompt's end";
    case FamilyAttention::canvas:
      return "a causal prompt, and canvases after it whose positions see the prompt and each other";
    case FamilyAttention::block_causal:
      break;
  }
  return "block-causal: a block sees itself and the blocks before it";
}

std::string default_text(const std::optional<std::int64_t>& value) {
  return value ? fmt::format(", {} by default", *value) : "";
}

std::string quoted(const std::vector<std::string>& names) {
  return fmt::format("\"{}\"", fmt::join(names, "\" or \""));
}

}  // namespace

const std::vector<Family>& family_table() {
  static const std::vector<Family> table{sdar_family(),
                                         sdar_moe_family(),
                                         qwen2_family(),
                                         qwen3_family(),
                                         qwen3_moe_family(),
                                         llama_family(),
                                         llada_family(),
                                         dream_family(),
                                         llada2_moe_family(),
                                         fast_dllm_v2_family(),
                                         stable_diffcoder_family(),
                                         a2d_qwen2_family(),
                                         a2d_qwen3_family(),
                                         nemotron_family(),
                                         diffusion_gemma_family(),
                                         dflash_family(),
                                         wedlm_family(),
                                         llada2_moe_veomni_family()};
  return table;
}

const std::string& Family::key(const std::string& transformers_key) const {
  const auto found = keys.find(transformers_key);
  return found == keys.end() ? transformers_key : found->second;
}

std::string ConfigFile::source(const std::string& key) const {
  const std::string& own = family.key(key);
  return keys.has(own) ? "config.json:" + own : "architecture table (absent in config.json)";
}

void add_resolved(ModelConfig& config, const std::string& key, const nlohmann::json& value,
                  const std::string& source) {
  config.resolved.push_back({key, value.dump(), source});
}

std::vector<std::string> families_with(bool (*which)(const Family&)) {
  std::vector<std::string> names;
  for (const Family& family : family_table()) {
    if (which(family)) names.push_back(family.name);
  }
  return names;
}

const Family& family_named(std::string_view name) {
  if (const Family* family = by_model_type(std::string(name))) return *family;
  throw CheckpointError(
      fmt::format("model_type: expected one of {}, got \"{}\"", supported_list(), name));
}

const Family& family_of(const ModelConfig& config) { return family_named(config.model_type); }

const Family& trained_from(const Family& backbone) {
  const auto& table = family_table();
  const auto found = std::ranges::find_if(
      table, [&](const Family& family) { return family.training.backbone == backbone.name; });
  return found == table.end() ? backbone : *found;
}

void set_family(const Family& family, ModelConfig& config) {
  config.model_type = family.name;
  config.architecture = family.architectures.front();
  config.qk_norm = family.qk_norm;
  config.rope_in_float32 = family.rotates_in_float32;
  config.attention_bidirectional = family.attention == FamilyAttention::bidirectional;
  config.logit_shift = family.logit_shift;
}

const Family& find_family(const JsonObject& config) {
  const auto model_type = config.optional_string("model_type");
  const auto architecture = first_architecture(config);
  for (const Family& family : family_table()) {
    if (family.claims != nullptr && family.claims(config, architecture)) return family;
  }
  if (!model_type && !architecture) {
    config.fail("model_type", "one of " + supported_list(),
                "config.json must name the family under model_type or architectures");
  }

  const Family* family = model_type ? by_model_type(*model_type) : by_architecture(*architecture);
  if (family == nullptr) {
    config.fail(model_type ? "model_type" : "architectures", "one of " + supported_list(),
                "this version supports no other family");
  }
  if (!family->refusal.empty()) refuse(config, *family);
  if (architecture) {
    const Family* named = by_architecture(*architecture);
    if (named != nullptr && !named->refusal.empty()) refuse(config, *named);
    if (named != family) {
      config.fail("architectures", fmt::format("[\"{}\"] for model_type \"{}\"",
                                               family->architectures.front(), family->name));
    }
  }
  return *family;
}

std::vector<std::pair<std::string, std::string>> family_facts(const Family& family) {
  std::vector<std::pair<std::string, std::string>> facts;
  const auto add = [&](const char* what, std::string value) {
    if (!value.empty()) facts.emplace_back(what, std::move(value));
  };
  add("model_type", family.claims == nullptr ? quoted({family.name}) : "");
  if (!family.architectures.empty()) add("architectures", quoted(family.architectures));
  add("not run", family.refusal);
  if (!family.refusal.empty()) return facts;
  add("attention", attention_text(family));
  add("logits", family.logit_shift > 0 ? "of position p predict position p + 1" : "");
  if (!family.draft && family.attention != FamilyAttention::causal) {
    const bool canvas = family.attention == FamilyAttention::canvas;
    add("block length",
        canvas ? "\"canvas_length\", 256 by default"
               : quoted(family.block_length_keys) + default_text(family.default_block_length));
    add("mask token id",
        canvas ? "none: undecided positions hold random tokens"
               : quoted(family.mask_keys) + default_text(family.default_mask_token_id));
    add("mask token", family.mask_token);
  }
  if (family.sub_block_length > 0) {
    add("sub-blocks", fmt::format("of {} positions by default", family.sub_block_length));
  }
  add("norms", family.qk_norm ? "of layers, and of each head's queries and keys" : "of layers");
  add("biases", family.qkv_bias ? "on q, k and v" : "as config.json says");
  add("experts", family.experts ? "as config.json says" : "");
  const WeightNames& names = family.weights;
  add("weights", fmt::format("{}{}.weight, ...", names.layer_prefix(0),
                             names.qkv.empty() ? names.q : names.qkv));
  add("train", family.training.by_name ? "blockscope train --family " + family.name
               : family.draft          ? "blockscope train --stage draft"
                                       : "");
  add("refuses", family.refuses);
  return facts;
}

}  // namespace blockscope
