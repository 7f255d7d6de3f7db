// Where a picture of a trace starts, unless somebody selects a place: shared by the viewer and the
// report.
#pragma once

#include <cstddef>
#include <vector>

#include "analysis/pass/block_index.h"

namespace blockscope {

/// Indices into the blocks, and into the block's steps.
struct PlaceToSee {
  std::size_t block = 0;
  std::size_t step = 0;
};

/// The block with the most to see, and a step in the middle of it.
///
/// The block: it has recorded steps if any block has. Of these, it is the one whose steps decided
/// the most positions that still hold text after its last step, because end-of-text tokens and
/// masks show nothing. Of equal ones, it is the one with the most steps, then the first one.
///
/// The step: the first recorded one at which at most half of the block's masks are left and after
/// which a recorded one follows. If there is none, the first recorded one. So the block holds text
/// already, and a comparison with the next step exists.
///
/// Reads what the steps of the first blocks decided: of at most 256 blocks, and of no further block
/// after 8,192 steps. This takes milliseconds, however long the trace is. `blocks`: from
/// list_blocks(); {0, 0} if it is empty.
PlaceToSee most_to_see(const TraceReader& trace, const std::vector<BlockSteps>& blocks);

}  // namespace blockscope
