// What other families share with Qwen2 and Qwen3, in addition to the defaults of an entry.
#pragma once

#include <nlohmann/json.hpp>

#include "probe/checkpoint/family_table.h"

namespace blockscope {

Family qwen3_family();

/// The config.json that `blockscope train` writes for a dense model. `own`: keys of the family.
nlohmann::ordered_json qwen_config_json(
    const Family& family, const ModelConfig& config, const TrainedTokens& tokens,
    const nlohmann::ordered_json& own = nlohmann::ordered_json::object());

}  // namespace blockscope
