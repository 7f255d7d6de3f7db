// The names of a model's parts in a family's checkpoints. The defaults are those of transformers'
// `modeling_qwen2.py` and `modeling_qwen3.py`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace blockscope {

struct ExpectedTensor {
  std::string name;
  std::vector<std::int64_t> shape;
};

struct WeightNames {
  std::string embed = "model.embed_tokens.weight";  // whole names
  std::string norm = "model.norm.weight";
  std::string lm_head = "lm_head.weight";
  std::string layer = "model.layers.{}.";      // with the layer's number
  std::string input_norm = "input_layernorm";  // this and all below follow `layer`
  std::string post_norm = "post_attention_layernorm";
  std::string q = "self_attn.q_proj";  // this and all below are without ".weight" and ".bias"
  std::string k = "self_attn.k_proj";
  std::string v = "self_attn.v_proj";
  std::string o = "self_attn.o_proj";
  std::string q_norm = "self_attn.q_norm";
  std::string k_norm = "self_attn.k_norm";
  std::string qkv{};         // one tensor with the rows of q, k and v, instead of these
  std::string mlp = "mlp.";  // prefix of gate, up and down
  std::string gate = "gate_proj";
  std::string up = "up_proj";
  std::string down = "down_proj";

  /// "model.layers.3." for layer 3.
  std::string layer_prefix(std::int64_t index) const {
    std::string prefix = layer;
    return prefix.replace(prefix.find("{}"), 2, std::to_string(index));
  }

  bool operator==(const WeightNames&) const = default;
};

/// The convolutions of a DFlash 2 draft's layer; both follow `layer`.
inline constexpr const char* kAttentionConv = "attention_conv";
inline constexpr const char* kMlpConv = "mlp_conv";

}  // namespace blockscope
