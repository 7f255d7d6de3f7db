// The config.json of published checkpoints, of all families. Large sizes are smaller than
// published.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>

namespace blockscope::test {

/// `first` with the keys of `second`.
nlohmann::json joined(nlohmann::json first, const nlohmann::json& second);

/// name -> config.json
const std::map<std::string, nlohmann::json>& published_keys();

}  // namespace blockscope::test
