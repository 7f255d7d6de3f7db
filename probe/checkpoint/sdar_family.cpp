// SDAR and TraDo: Qwen3's layers with block-causal attention. Mask id and block length come from
// config.json, and from SGLang's table {SDARForCausalLM: block 4, mask 151669}.
#include "probe/checkpoint/qwen_family.h"

namespace blockscope {
namespace {

nlohmann::ordered_json sdar_config_json(const Family& family, const ModelConfig& config,
                                        const TrainedTokens& tokens) {
  return qwen_config_json(family, config, tokens,
                          {{"block_size", 16}, {"mask_token_id", tokens.mask}});
}

}  // namespace

Family sdar_family() {
  Family family;
  family.name = "sdar";
  family.architectures = {"SDARForCausalLM"};
  family.meaning = "SDAR and TraDo, dense";
  family.source = "SDAR, modeling_sdar.py and generate.py:block_diffusion_generate";
  family.example = "capture JetLM/SDAR-8B-Chat";
  family.norm_weight_first = true;
  family.mask_token = "<|MASK|>";
  family.default_mask_token_id = 151669;
  family.default_block_length = 4;
  family.training = {
      .by_name = true, .backbone = "qwen3", .reuse = true, .config_json = sdar_config_json};
  return family;
}

Family sdar_moe_family() {
  Family family = sdar_family();
  family.name = "sdar_moe";
  family.architectures = {"SDARMoeForCausalLM"};
  family.meaning = "SDAR with Qwen3-MoE's mixtures of experts";
  family.source = "SDAR, modeling_sdar_moe.py and generate.py:block_diffusion_generate";
  family.example = "capture JetLM/SDAR-30B-A3B-Chat";
  family.experts = true;
  family.training = {.reuse = true};
  return family;
}

}  // namespace blockscope
