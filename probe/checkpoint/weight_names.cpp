#include "probe/checkpoint/weight_names.h"

#include <fmt/format.h>

namespace blockscope {
namespace {

constexpr WeightNames kQwenNames{
    .embed = "model.embed_tokens.weight",
    .norm = "model.norm.weight",
    .lm_head = "lm_head.weight",
    .layer = "model.layers.{}.",
    .input_norm = "input_layernorm",
    .post_norm = "post_attention_layernorm",
    .q = "self_attn.q_proj",
    .k = "self_attn.k_proj",
    .v = "self_attn.v_proj",
    .o = "self_attn.o_proj",
    .q_norm = "self_attn.q_norm",
    .k_norm = "self_attn.k_norm",
    .mlp = "mlp.",
    .gate = "gate_proj",
    .up = "up_proj",
    .down = "down_proj",
};

// The LM head and the down projection of every layer are both called ff_out.
constexpr WeightNames kLladaNames{
    .embed = "model.transformer.wte.weight",
    .norm = "model.transformer.ln_f.weight",
    .lm_head = "model.transformer.ff_out.weight",
    .layer = "model.transformer.blocks.{}.",
    .input_norm = "attn_norm",
    .post_norm = "ff_norm",
    .q = "q_proj",
    .k = "k_proj",
    .v = "v_proj",
    .o = "attn_out",
    .q_norm = "q_norm",
    .k_norm = "k_norm",
    .mlp = "",
    .gate = "ff_proj",
    .up = "up_proj",
    .down = "ff_out",
};

constexpr WeightNames kLlada2Names{
    .embed = "model.word_embeddings.weight",
    .norm = "model.norm.weight",
    .lm_head = "lm_head.weight",
    .layer = "model.layers.{}.",
    .input_norm = "input_layernorm",
    .post_norm = "post_attention_layernorm",
    .o = "attention.dense",
    .q_norm = "attention.query_layernorm",
    .k_norm = "attention.key_layernorm",
    .qkv = "attention.query_key_value",
    .mlp = "mlp.",
    .gate = "gate_proj",
    .up = "up_proj",
    .down = "down_proj",
};

// DFlash drafts (`dflash/model.py`); embed and lm_head in speculators' layout alone.
constexpr WeightNames kDraftNames = [] {
  WeightNames names = kQwenNames;
  names.embed = "embed_tokens.weight";
  names.norm = "norm.weight";
  names.layer = "layers.{}.";
  return names;
}();

}  // namespace

std::string WeightNames::layer_prefix(std::int64_t index) const {
  return fmt::format(fmt::runtime(layer), index);
}

const WeightNames& weight_names(std::string_view model_type) {
  if (model_type == "llada") return kLladaNames;
  if (model_type == "dflash") return kDraftNames;
  return model_type == "llada2_moe" ? kLlada2Names : kQwenNames;
}

}  // namespace blockscope
