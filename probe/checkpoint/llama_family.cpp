// Llama 2 and 3: Qwen2's layers without biases on q, k and v, unless attention_bias puts them on
// all four projections (transformers, `configuration_llama.py`, `modeling_llama.py`).
#include "probe/checkpoint/family_table.h"

namespace blockscope {

Family llama_family() {
  Family family;
  family.name = "llama";
  family.architectures = {"LlamaForCausalLM"};
  family.meaning = "Llama 2 and 3, dense";
  family.source = "transformers, modeling_llama.py";
  family.example = "capture meta-llama/Llama-3.1-8B-Instruct";
  family.refuses = "mlp_bias";
  family.attention = FamilyAttention::causal;
  family.qk_norm = false;
  family.default_head_dim = 0;
  family.default_rope_theta = 10000.0;  // Llama 2's files have no rope_theta
  return family;
}

}  // namespace blockscope
