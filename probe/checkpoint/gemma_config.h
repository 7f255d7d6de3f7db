// What DiffusionGemma's layers have and no other family's (diffusion_gemma_family.cpp reads it;
// transformers `modeling_diffusion_gemma.py`). One stack runs in two modes. As encoder it is causal
// and writes keys and values. As decoder a canvas of random tokens sees those keys and itself in
// both directions, and its embedding also holds what the step before predicted (self-conditioning).
// Further: norms before and after attention and feed-forward, an MLP beside the experts, values
// with a norm, a softmax scale of 1, a factor after each layer, a soft cap of the logits.
#pragma once

#include <cstdint>
#include <string>

namespace blockscope {

// Names of the parts that no other family has.
inline const std::string kSelfConditioning = "model.decoder.self_conditioning.";
inline const std::string kEncoderLayers = "model.encoder.language_model.layers.";

struct GemmaConfig {
  double embed_scale = 1.0;     // factor of the embedding: sqrt(hidden_size)
  double logit_softcap = 30.0;  // logits become cap * tanh(logits / cap)
  // How generation_config.json decodes a canvas; empty and 0: it does not say.
  std::string strategy_options;  // such as ",t_max=0.9,stable_steps=2"
  std::int64_t denoising_steps = 0;
};

}  // namespace blockscope
