// Models that dLLM (github.com/ZHZisZZ/dllm, `pipelines/a2d`) made from Qwen2.5 and Qwen3: the same
// layers with another mask. TIDE distils into such models. Their config.json is the same after both
// of its trainers, BD3LM (blocks) and MDLM (every position sees all others), and has no block
// length. So the block length must be given, which says that the model was trained with BD3LM.
#include "probe/checkpoint/family_table.h"

namespace blockscope {
namespace {

Family a2d_family(const char* name, const char* architecture, const char* meaning) {
  Family family;
  family.name = name;
  family.architectures = {architecture};
  family.meaning = meaning;
  family.source = "dLLM, core/samplers/bd3lm.py:BD3LMSampler";
  family.refuses =
      "models of the MDLM trainer, whose config.json is the same: --block-length says that the "
      "model was trained with BD3LM";
  family.mask_token = "<|mask|>";
  return family;
}

}  // namespace

Family a2d_qwen2_family() {
  Family family = a2d_family("a2d-qwen2", "A2DQwen2LMHeadModel",
                             "Qwen2.5 after dLLM's BD3LM trainer, block-causal");
  family.example =
      "capture dllm-hub/Qwen2.5-Coder-0.5B-Instruct-diffusion-bd3lm-v0.1 --block-length 32";
  family.qk_norm = false;
  family.qkv_bias = true;
  family.default_head_dim = 0;
  family.default_mask_token_id = 151665;
  return family;
}

Family a2d_qwen3_family() {
  Family family = a2d_family("a2d-qwen3", "A2DQwen3LMHeadModel",
                             "Qwen3 after dLLM's BD3LM trainer, block-causal");
  family.example = "capture dllm-hub/Qwen3-0.6B-diffusion-bd3lm-v0.1 --block-length 32";
  family.default_mask_token_id = 151669;
  return family;
}

}  // namespace blockscope
