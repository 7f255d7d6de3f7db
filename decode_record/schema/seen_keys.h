// Which keys a query of a block sees in a layer, among the external keys of the row and the block's
// own. Whoever computes weights again from recorded queries and keys asks here.
#pragma once

#include <cstdint>

#include "decode_record/schema/trace_meta.h"

namespace blockscope {

/// In /model/json: whether each of a draft's layers is causal. Absent: none is.
inline constexpr const char* kCausalLayersPlace = "/resolved/draft_causal_layers/value";

/// By default a query sees all external keys of the layer (LayerSizes::external_keys()) and the
/// whole block.
struct SeenKeys {
  bool causal = false;      ///< no key of the block after the query's own
  std::int64_t window = 0;  ///< W: only the newest W keys up to the query's own; 0: all

  bool all() const { return !causal && window == 0; }
  /// `query`: position in the block. `key`: position, counted from the block's start.
  bool sees(std::int64_t query, std::int64_t key) const {
    return !(causal && key > query) && (window == 0 || query - key < window);
  }
};

/// `layer` is a layer of the model, not a recorded slot. Only traces with a draft hide keys:
/// docs/trace_format.md, "Drafts".
SeenKeys seen_keys(const TraceMeta& meta, std::int64_t layer);

}  // namespace blockscope
