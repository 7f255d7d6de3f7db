// The final token of each position of a block, and the step that decided it.
#pragma once

#include <cstdint>
#include <vector>

#include "analysis/pass/block_index.h"

namespace blockscope {

struct BlockDecisions {
  std::vector<std::int64_t> token;  ///< [B]
  std::vector<std::int64_t> index;  ///< [B] into BlockSteps::steps; -1: not decided by these steps
  /// [steps][B], 1: a mask before this step. A token that is taken back is a mask again. Counts
  /// only where `index` is not -1.
  std::vector<std::vector<std::uint8_t>> masks;
};

/// Tokens that were taken back and decided again, edited or moved have their last step. Positions
/// outside the block are left out, so this does not fit runs that decode token by token.
BlockDecisions decisions_of(const TraceReader& trace, const BlockSteps& block);

}  // namespace blockscope
