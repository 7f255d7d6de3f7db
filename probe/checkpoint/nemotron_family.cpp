// Nemotron-Labs-Diffusion (arXiv 2607.05722): Ministral 3's layers under other names
// (`modeling_nemotron_labs_diffusion.py`, `modeling_ministral.py`; transformers, `ministral3`). Its
// weights serve three modes. The runtime has the autoregressive one.
#include "probe/checkpoint/family_table.h"

namespace blockscope {
namespace {

void read_nemotron_layers(const ConfigFile& file, ModelConfig& config) {
  const JsonObject& keys = file.keys;
  read_qwen_layers(file, config);
  // Its q, k and v never have biases, whatever the key says.
  if (config.attention_bias) keys.fail("attention_bias", "false");
  if (config.tie_word_embeddings) {
    keys.fail("tie_word_embeddings", "false", "the model has an LM head of its own");
  }
  if (keys.has("sliding_window")) {
    keys.fail("sliding_window", "null", "sliding-window attention is not supported");
  }
  const auto paradigm = keys.optional_string("dlm_paradigm").value_or("bidirectional");
  if (paradigm != "bidirectional" && paradigm != "autoregressive") {
    keys.fail("dlm_paradigm", "\"bidirectional\" or \"autoregressive\"",
              "models of another paradigm have no autoregressive mode here");
  }
}

}  // namespace

Family nemotron_family() {
  Family family;
  family.name = "nemotron_labs_diffusion";
  family.architectures = {"NemotronLabsDiffusionModel"};
  family.meaning = "Nemotron-Labs-Diffusion, in its autoregressive mode";
  family.source =
      "Nemotron-Labs-Diffusion, modeling_nemotron_labs_diffusion.py:ar_generate; transformers, "
      "modeling_ministral3.py";
  family.example = "capture nvidia/Nemotron-Labs-Diffusion-8B";
  family.refuses =
      "its block mode, which keeps a block's keys from a causal pass that also predicts the next "
      "block's first token; its linear speculation; sliding windows; dlm_paradigm block_diff";
  family.attention = FamilyAttention::causal;
  family.causal_only = true;
  family.query_scaling = true;
  family.qk_norm = false;
  family.weights.embed = "encoder.embed_tokens.weight";
  family.weights.norm = "encoder.norm.weight";
  family.weights.lm_head = "diffusion_head.weight";
  family.weights.layer = "encoder.layers.{}.";
  family.neutral_keys = {{"dlm_loss_weight"}, {"ar_loss_weight"}, {"dp_varying_mask_ratio"}};
  family.read_layers = read_nemotron_layers;
  return family;
}

}  // namespace blockscope
