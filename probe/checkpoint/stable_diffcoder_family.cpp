// Stable-DiffCoder (arXiv 2601.15892): Llama's layers with block-causal attention. Its config.json
// has model_type llama, so the class name decides. Mask id and block length are arguments of
// `StableDiffcoderForCausalLM.generate`.
#include "probe/checkpoint/family_table.h"

namespace blockscope {
namespace {

constexpr const char* kClass = "StableDiffcoderForCausalLM";

bool is_stable_diffcoder(const JsonObject& file, const std::optional<std::string>& architecture) {
  if (architecture.value_or("") != kClass) return false;
  const auto type = file.optional_string("model_type");
  if (type && *type != "llama") {
    file.fail("model_type", "\"llama\"");
  }
  return true;
}

}  // namespace

Family stable_diffcoder_family() {
  Family family;
  family.name = "stable_diffcoder";
  family.architectures = {kClass};
  family.meaning = "Stable-DiffCoder, block-causal; recognised by its class name";
  family.source = "Stable-DiffCoder, StableDiffcoderForCausalLM.generate_block";
  family.example = "capture ByteDance-Seed/Stable-DiffCoder-8B-Instruct --strategy threshold";
  family.refuses = "mlp_bias";
  family.qk_norm = false;
  family.default_head_dim = 0;
  family.mask_token = "<[MASK_TOKEN]>";
  family.default_mask_token_id = 5;
  family.default_block_length = 4;
  family.claims = is_stable_diffcoder;
  return family;
}

}  // namespace blockscope
