// See architecture_table.h.
#include "probe/checkpoint/architecture_table.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <utility>

#include "decode_record/base/error.h"
#include "probe/checkpoint/draft_config.h"

namespace blockscope {

namespace {

ArchitectureFamily sdar_family() {
  ArchitectureFamily family;
  family.model_type = "sdar";
  family.architectures = {"SDARForCausalLM"};
  family.qk_norm = true;
  family.default_head_dim = 128;
  family.mask_keys = {"mask_token_id"};
  family.block_length_keys = {"block_size", "block_length"};
  family.mask_token = "<|MASK|>";
  family.default_mask_token_id = 151669;
  family.default_block_length = 4;
  return family;
}

ArchitectureFamily sdar_moe_family() {
  ArchitectureFamily family = sdar_family();
  family.model_type = "sdar_moe";
  family.architectures = {"SDARMoeForCausalLM"};
  family.experts = true;
  return family;
}

ArchitectureFamily qwen2_family() {
  ArchitectureFamily family;
  family.model_type = "qwen2";
  family.architectures = {"Qwen2ForCausalLM"};
  family.autoregressive = true;
  family.qkv_bias = true;
  return family;
}

ArchitectureFamily qwen3_family() {
  ArchitectureFamily family;
  family.model_type = "qwen3";
  family.architectures = {"Qwen3ForCausalLM"};
  family.autoregressive = true;
  family.qk_norm = true;
  family.default_head_dim = 128;
  return family;
}

ArchitectureFamily qwen3_moe_family() {
  ArchitectureFamily family = qwen3_family();
  family.model_type = "qwen3_moe";
  family.architectures = {"Qwen3MoeForCausalLM"};
  family.experts = true;
  return family;
}

ArchitectureFamily llada_family() {
  ArchitectureFamily family;
  family.model_type = "llada";
  family.architectures = {"LLaDAModelLM"};
  family.bidirectional = true;
  family.mask_keys = {"mask_token_id"};
  family.block_length_keys = {"block_length"};
  family.mask_token = "<|mdm_mask|>";
  family.default_mask_token_id = 126336;
  family.default_block_length = 32;
  return family;
}

ArchitectureFamily dream_family() {
  ArchitectureFamily family;
  family.model_type = "Dream";
  family.architectures = {"DreamModel"};
  family.bidirectional = true;
  family.logit_shift = 1;
  family.qkv_bias = true;
  family.mask_keys = {"mask_token_id"};
  family.block_length_keys = {"block_length"};
  family.mask_token = "<|mask|>";
  family.default_mask_token_id = 151666;
  family.default_block_length = 32;
  return family;
}

// Mask id, block length and mask token: `modeling_llada2_moe.py:generate` and the published
// tokenizer; the published config.json holds neither.
ArchitectureFamily llada2_moe_family() {
  ArchitectureFamily family;
  family.model_type = "llada2_moe";
  family.architectures = {"LLaDA2MoeModelLM"};
  family.qk_norm = true;
  family.experts = true;
  family.partial_rotary = true;
  family.mask_keys = {"mask_token_id"};
  family.block_length_keys = {"block_size", "block_length"};
  family.mask_token = "<|mask|>";
  family.default_mask_token_id = 156895;
  family.default_block_length = 32;
  return family;
}

// Mask id and block length: `modeling.py:generate`, `config.json:bd_size` of Fast_dLLM_v2_7B.
ArchitectureFamily fast_dllm_qwen_family() {
  ArchitectureFamily family;
  family.model_type = "Fast_dLLM_Qwen";
  family.architectures = {"Fast_dLLM_QwenForCausalLM"};
  family.logit_shift = 1;
  family.qkv_bias = true;
  family.mask_keys = {"mask_token_id"};
  family.block_length_keys = {"bd_size", "block_size", "block_length"};
  family.mask_token = "|<MASK>|";
  family.default_mask_token_id = 151665;
  family.default_block_length = 32;
  return family;
}

// Its layers are Qwen3's (`dflash/model.py`), and so is its model_type, as a rule.
ArchitectureFamily dflash_family() {
  ArchitectureFamily family = qwen3_family();
  family.model_type = "dflash";
  family.architectures = {"DFlashDraftModel", "DFlashSpeculator"};
  family.autoregressive = false;
  family.draft = true;
  return family;
}

ArchitectureFamily refused(std::string_view model_type, std::vector<std::string_view> architectures,
                           std::string_view why) {
  ArchitectureFamily family;
  family.model_type = model_type;
  family.architectures = std::move(architectures);
  family.refusal = why;
  return family;
}

std::string supported_list() {
  std::string text;
  for (const ArchitectureFamily& family : architecture_table()) {
    if (!family.refusal.empty()) continue;
    text += fmt::format("{}\"{}\" ({})", text.empty() ? "" : ", ", family.model_type,
                        family.architectures.front());
  }
  return text;
}

const ArchitectureFamily* by_architecture(const std::string& name) {
  for (const ArchitectureFamily& family : architecture_table()) {
    const auto& names = family.architectures;
    if (std::find(names.begin(), names.end(), name) != names.end()) return &family;
  }
  return nullptr;
}

const ArchitectureFamily* by_model_type(const std::string& name) {
  for (const ArchitectureFamily& family : architecture_table()) {
    if (family.model_type == name) return &family;
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

void refuse(const JsonObject& config, const ArchitectureFamily& family) {
  throw CheckpointError(fmt::format(
      "{}: expected a family this version runs, got \"{}\": the family is known and not supported "
      "by this version: {}. HINT: supported are {}",
      config.where(), family.model_type, family.refusal, supported_list()));
}

}  // namespace

const std::vector<ArchitectureFamily>& architecture_table() {
  static const std::vector<ArchitectureFamily> table = {
      sdar_family(),
      sdar_moe_family(),
      qwen2_family(),
      qwen3_family(),
      qwen3_moe_family(),
      llada_family(),
      dream_family(),
      llada2_moe_family(),
      refused(
          "llada2_moe_veomni", {},
          "its experts are stacked for training; dFactory's scripts/moe_convertor.py writes one "
          "tensor an expert (model_type \"llada2_moe\")"),
      fast_dllm_qwen_family(),
      dflash_family(),
  };
  return table;
}

const ArchitectureFamily& find_architecture(const JsonObject& config) {
  const auto model_type = config.optional_string("model_type");
  const auto architecture = first_architecture(config);
  // A DFlash draft may call itself qwen3: its own keys give it away.
  if (is_draft(config)) {
    const ArchitectureFamily& draft = *by_model_type("dflash");
    if (architecture && by_architecture(*architecture) != &draft) {
      config.fail("architectures",
                  fmt::format("[\"{}\"]", fmt::join(draft.architectures, "\"] or [\"")),
                  "drafts of other kinds are not run");
    }
    refuse_other_drafts(config);
    return draft;
  }
  if (config.has("speculators_model_type")) {
    config.fail("speculators_model_type", "\"dflash\"", "drafts of other kinds are not run");
  }
  if (!model_type && !architecture) {
    config.fail("model_type", "one of " + supported_list(),
                "config.json must name the family under model_type or architectures");
  }

  const ArchitectureFamily* family =
      model_type ? by_model_type(*model_type) : by_architecture(*architecture);
  if (family == nullptr) {
    config.fail(model_type ? "model_type" : "architectures", "one of " + supported_list(),
                "no other family is run by this version");
  }
  if (!family->refusal.empty()) refuse(config, *family);
  if (architecture) {
    const ArchitectureFamily* named = by_architecture(*architecture);
    if (named != nullptr && !named->refusal.empty()) refuse(config, *named);
    if (named != family) {
      config.fail("architectures", fmt::format("[\"{}\"] for model_type \"{}\"",
                                               family->architectures.front(), family->model_type));
    }
  }
  return *family;
}

}  // namespace blockscope
