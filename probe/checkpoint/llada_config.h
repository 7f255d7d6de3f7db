// Shapes of a LLaDA checkpoint: the keys of its config.json are OLMo's (`configuration_llada.py`,
// `modeling_llada.py`), not those of transformers' own models.
#pragma once

#include <cstdint>
#include <string>

#include "probe/checkpoint/json_object.h"
#include "probe/checkpoint/model_config.h"

namespace blockscope {

/// Fills layers, sizes, heads, vocabulary, positions, norm and bias of `config`. The vocabulary is
/// `embedding_size` where it is given: logits have that many columns, and the official argmax runs
/// over all of them. Throws CheckpointError naming the key, also for what the runtime does not do
/// (ALiBi, other blocks than "llama", norms over all heads together, biases outside q, k and v).
void parse_llada_shape(const JsonObject& file, std::int64_t max_width, ModelConfig& config);

/// LLaDA's key for one of transformers' names ("n_layers" for "num_hidden_layers"); others are the
/// same.
std::string llada_key(const std::string& key);

}  // namespace blockscope
