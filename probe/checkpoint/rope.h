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
  std::vector<double> inv_freq;   // [rotary channels / 2]; the angle of position p and pair i is
                                  // p * inv_freq[i]
  double attention_factor = 1.0;  // factor of both cos and sin; 1 except for YaRN
};

/// `seq_len` is the longest sequence (prompt + generated tokens) that uses the frequencies. Only
/// `dynamic` depends on it, and only beyond the original length.
RopeFrequencies rope_inverse_frequencies(const RopeConfig& rope, std::int64_t head_dim,
                                         std::int64_t seq_len);

/// The largest number of positions of a sequence: max_position_embeddings, times the factor of
/// `dynamic` scaling. For the other types max_position_embeddings is already the stretched length.
std::int64_t largest_position_count(const ModelConfig& config);

}  // namespace blockscope
