// Fast-dLLM v2: Qwen2's layers, blocks that are filled sub-block by sub-block, and a token shift.
// Sources of mask id, block length and sub-blocks: `modeling.py:generate` and `config.json:bd_size`
// of Fast_dLLM_v2_7B.
#include "probe/checkpoint/family_table.h"

namespace blockscope {

Family fast_dllm_v2_family() {
  Family family;
  family.name = "Fast_dLLM_Qwen";
  family.architectures = {"Fast_dLLM_QwenForCausalLM"};
  family.meaning = "Fast-dLLM v2, blocks of sub-blocks with a token shift";
  family.source = "Fast-dLLM v2, modeling.py:Fast_dLLM_QwenForCausalLM.generate";
  family.example = "capture Efficient-Large-Model/Fast_dLLM_v2_7B --cache block";
  family.logit_shift = 1;
  family.sub_block_length = 8;
  family.qk_norm = false;
  family.qkv_bias = true;
  family.default_head_dim = 0;
  family.block_length_keys = {"bd_size", "block_size", "block_length"};
  family.mask_token = "|<MASK>|";
  family.default_mask_token_id = 151665;
  family.default_block_length = 32;
  return family;
}

}  // namespace blockscope
