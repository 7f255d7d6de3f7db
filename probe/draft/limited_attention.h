// Attention of a draft's layer whose rows see different keys: a sliding window, where each row sees
// its newest keys, or a causal layer, where a row sees the block only up to itself
// (`dflash/model.py:_attention_mask`).
#pragma once

#include <algorithm>
#include <cstdint>

#include "probe/policies/attention_policy.h"

namespace blockscope {

struct RowLimits {
  int64_t window = 0;   // newest keys that a row sees, its own included; 0: all
  bool causal = false;  // a row sees no key of the block after its own

  /// The first of `length` keys before the block that row `row` sees.
  int64_t first_key(int64_t row, int64_t length) const {
    return window == 0 ? 0 : std::max<int64_t>(0, length + row + 1 - window);
  }
};

/// The window must hold the whole block. external.length counts all keys that the block's first row
/// may see; its first keys are dropped row by row.
AttentionParts limited_attention(const AttentionInput& input, const ExternalKeys& external,
                                 const RowLimits& limits);

/// The keys that every row sees, for an observer that reads one set of keys for all rows.
ExternalKeys common_keys(const ExternalKeys& external, const RowLimits& limits, int64_t rows);

}  // namespace blockscope
