// RoPE keys of config.json, in both spellings: `rope_theta` + `rope_scaling` (transformers 4) and
// `rope_parameters` (transformers 5). Every key is used or refused, never ignored.
#pragma once

#include <string>
#include <string_view>

#include "probe/checkpoint/json_object.h"
#include "probe/checkpoint/model_config.h"

namespace blockscope {

/// `max_position_embeddings` and `head_dim` of `config` must be set. `source` becomes the key that
/// was used, e.g. "config.json:rope_parameters". `partial`: in this family only a part of a head's
/// channels rotate, and the file must say how many.
RopeConfig parse_rope_config(const JsonObject& config_json, const ModelConfig& config, bool partial,
                             std::string& source);

std::string_view rope_type_name(RopeType type);

}  // namespace blockscope
