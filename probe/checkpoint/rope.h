// Inverse frequencies of rotary embeddings for every scaling type in `RopeConfig`, in double.
// Sources: RoPE (Su et al. 2021, eq. 15); linear interpolation (Chen et al. 2023); dynamic NTK (as
// in transformers); YaRN (Peng et al. 2023, eq. 14-22); Llama 3.1. Equal to transformers'
// `modeling_rope_utils.ROPE_INIT_FUNCTIONS`.
#pragma once

#include <cstdint>
#include <vector>

#include "probe/checkpoint/model_config.h"

namespace blockscope {

struct RopeFrequencies {
  std::vector<double> inv_freq;   // [rotary channels / 2]; angle of position p, pair i =
                                  // p * inv_freq[i]
  double attention_factor = 1.0;  // multiply both cos and sin by it (YaRN; 1 otherwise)
};

/// `seq_len` is the longest sequence the frequencies are used for (prompt + generated tokens). Only
/// `dynamic` depends on it, and only beyond the original length.
RopeFrequencies rope_inverse_frequencies(const ModelConfig& config, std::int64_t seq_len);

/// Positions a sequence may have: max_position_embeddings, which `dynamic` scaling stretches by its
/// factor (the other types state the stretched length there).
std::int64_t largest_position_count(const ModelConfig& config);

}  // namespace blockscope
