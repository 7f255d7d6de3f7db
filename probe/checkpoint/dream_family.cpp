// Dream: Qwen2's layers, attention in both directions, and a token shift (`modeling_dream.py`,
// `generation_utils.py`).
#include "probe/checkpoint/family_table.h"

namespace blockscope {

Family dream_family() {
  Family family;
  family.name = "Dream";
  family.architectures = {"DreamModel"};
  family.meaning = "Dream, a bidirectional model with a token shift";
  family.source = "Dream, modeling_dream.py and generation_utils.py:_sample";
  family.example = "capture Dream-org/Dream-v0-Instruct-7B --cache dual";
  family.attention = FamilyAttention::bidirectional;
  family.logit_shift = 1;
  family.qk_norm = false;
  family.qkv_bias = true;
  family.default_head_dim = 0;
  family.block_length_keys = {"block_length"};
  family.mask_token = "<|mask|>";
  family.default_mask_token_id = 151666;
  family.default_block_length = 32;
  return family;
}

}  // namespace blockscope
