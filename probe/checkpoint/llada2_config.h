// What a LLaDA2 MoE config.json says beside the keys of transformers' own models: dFactory
// `configuration_llada2_moe.py` and `modeling_llada2_moe.py` (LLaDA2.0-mini, LLaDA2.0-flash).
#pragma once

#include <cstdint>

#include "probe/checkpoint/json_object.h"
#include "probe/checkpoint/model_config.h"

namespace blockscope {

/// Fills `moe` and the biases of `config`, whose layers are set. Throws CheckpointError naming the
/// key: for a number out of its range, for one that the family needs and the file lacks, and for
/// what the official code does otherwise or not at all (other scores than sigmoids, a normed or
/// split projection, `norm_topk_prob` false: the official code normalises all the same).
void parse_llada2(const JsonObject& file, std::int64_t max_width, ModelConfig& config);

}  // namespace blockscope
