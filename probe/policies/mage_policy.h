// MAGE (seed: "All-[MASK] Block Already Knows Where to Look", algorithm 1, eq. 3): a block's first
// step, the all-[MASK] one, reads everything; the k keys with the largest mean probability of that
// step are read at all later steps of the block. The sets are chosen on a second thread, or a
// device's second stream, beside the rest of the layer. With `residual`: the attention over the
// other keys at that first step is kept and merged at later steps (FlashBlock, appendix D, with
// MAGE's sets).
#pragma once

#include <memory>

#include "probe/policies/selection_policy.h"

namespace blockscope {

std::unique_ptr<AttentionPolicy> make_mage_policy(const SelectionOptions& options);

}  // namespace blockscope
