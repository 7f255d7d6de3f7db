// Finds the mask id and the block length. model_config.h documents the order of the sources. The
// values of all sources are compared before the first source wins.
#pragma once

#include "probe/checkpoint/family_table.h"
#include "probe/checkpoint/json_object.h"
#include "probe/checkpoint/model_config.h"

namespace blockscope {

/// Fills `mask_token_id`, `block_length` and `warnings` of `config`. Its `vocab_size` and
/// `max_position_embeddings` must be set. Throws CheckpointError for contradicting sources and for
/// values out of range.
void resolve_block_diffusion(const ConfigTexts& texts, const JsonObject& config_json,
                             const Family& family, const ModelOverrides& overrides,
                             ModelConfig& config);

}  // namespace blockscope
