// The ids of tokens with a role that config.json and generation_config.json name. The mask's is in
// block_diffusion_config.h.
#pragma once

#include <string>

#include "probe/checkpoint/json_object.h"
#include "probe/checkpoint/model_config.h"

namespace blockscope {

/// Fills `stop_token_ids`, `bos_token_id` and `pad_token_id` of `config`, whose `vocab_size` is
/// set; returns the key that named the stop ids. Throws CheckpointError for a stop id outside the
/// vocabulary, in either file: decoding would wait for a token that never comes. The two other ids
/// decide nothing here: outside the vocabulary they are dropped with a warning, because small
/// models often keep those of the config they were derived from.
std::string resolve_special_ids(const ConfigTexts& texts, const JsonObject& file,
                                ModelConfig& config);

}  // namespace blockscope
