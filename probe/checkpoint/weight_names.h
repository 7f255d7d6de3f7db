// The one table of tensor names: what each family's checkpoints call the parts that the decoder
// knows. Sources: transformers `modeling_qwen2.py`, `modeling_qwen3.py` (SDAR, Dream and Fast-dLLM
// v2 keep Qwen's names); LLaDA `modeling_llada.py`; dFactory `modeling_llada2_moe.py`.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace blockscope {

struct WeightNames {
  std::string_view embed, norm, lm_head;   // whole names
  std::string_view layer;                  // "model.layers.{}." with the layer's number
  std::string_view input_norm, post_norm;  // behind it, as all that follow
  std::string_view q{}, k{}, v{};          // without ".weight" and ".bias", as all of these
  std::string_view o, q_norm, k_norm;      // three
  std::string_view qkv{};                  // instead of q, k, v: their rows, one below another
  std::string_view mlp;                    // begins the names of gate, up and down
  std::string_view gate, up, down;         // without ".weight"

  /// "model.layers.3." for layer 3.
  std::string layer_prefix(std::int64_t index) const;
};

/// Of a supported `model_type`.
const WeightNames& weight_names(std::string_view model_type);

}  // namespace blockscope
