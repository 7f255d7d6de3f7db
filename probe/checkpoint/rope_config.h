// RoPE keys of config.json, in both spellings: `rope_theta` + `rope_scaling` (transformers 4) and
// `rope_parameters` (transformers 5). Every key is used or refused, never ignored.
#pragma once

#include <string>
#include <string_view>

#include "probe/checkpoint/family_table.h"

namespace blockscope {

/// `max_position_embeddings` and `head_dim` of `config` must be set. `source` becomes the key that
/// was used, e.g. "config.json:rope_parameters".
RopeConfig parse_rope_config(const ConfigFile& file, const ModelConfig& config,
                             std::string& source);

std::string_view rope_type_name(RopeType type);

}  // namespace blockscope
