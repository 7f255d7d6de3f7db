// The ids of special tokens in config.json and generation_config.json. For the mask token see
// block_diffusion_config.h.
#pragma once

#include <string>

#include "probe/checkpoint/family_table.h"
#include "probe/checkpoint/model_config.h"

namespace blockscope {

/// Fills `stop_token_ids`, `bos_token_id` and `pad_token_id` of `config`; its `vocab_size` must be
/// set. Returns the key that named the stop ids. Throws CheckpointError for a stop id outside the
/// vocabulary in either file, because decoding would wait for a token that never comes. The other
/// two ids decide nothing here. Outside the vocabulary they are dropped with a warning, because
/// small models often keep the ids of the config from which they were derived.
std::string resolve_special_ids(const ConfigFile& file, ModelConfig& config);

}  // namespace blockscope
