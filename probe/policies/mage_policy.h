// MAGE ("All-[MASK] Block Already Knows Where to Look", algorithm 1, eq. 3). A block's first step,
// the all-[MASK] one, reads everything. All later steps of the block read the k keys with the
// largest mean probability in that first step. A second thread, or a device's second stream,
// chooses the sets in parallel with the rest of the layer. With `residual`, the first step's
// attention over the other keys is kept and merged at later steps (FlashBlock, appendix D, with
// MAGE's sets).
#pragma once

#include <memory>

#include "probe/policies/selection_policy.h"

namespace blockscope {

std::unique_ptr<AttentionPolicy> make_mage_policy(const SelectionOptions& options);

}  // namespace blockscope
