#include "decode_record/schema/seen_keys.h"

#include <nlohmann/json.hpp>

namespace blockscope {
namespace {

using nlohmann::json;

/// check_trace_texts() has checked what a file says, but not what a caller made.
bool is_causal(const TraceMeta& meta, std::int64_t layer) {
  const json model = json::parse(meta.model_json, nullptr, /*allow_exceptions=*/false);
  if (model.contains("draft")) return true;  // the target's pass over the draft's tokens
  const json::json_pointer place(kCausalLayersPlace);
  if (!model.contains(place)) return false;
  const json& layers = model.at(place);
  return layers.is_array() && layer < std::ssize(layers) &&
         layers[static_cast<std::size_t>(layer)] == true;
}

}  // namespace

SeenKeys seen_keys(const TraceMeta& meta, std::int64_t layer) {
  if (!meta.has_draft) return {};
  return {is_causal(meta, layer), meta.window_of(layer)};
}

}  // namespace blockscope
