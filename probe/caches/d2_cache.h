// d2Cache (arXiv 2509.23094; Kamichanw/d2Cache `src/cache/d2cache.py`). After every step it chooses
// the rows of the next pass in two stages:
//   1. The masks that are about to be decided: the `current_k` masks of a window with the highest
//      confidence * certainty density. The window begins with the block and ends with the block
//      that holds the current_k-th mask. Masks of the current block rank before all others.
//      Positions that the step chose are recomputed, too.
//   2. The smallest number of other rows (at least one) that covers `rollout_p` of the attention
//      rollout into all other rows. Then gaps of at most `inflate_window` rows are filled.
// The keys and values of all remaining rows stay. These rows have no prediction, so the decoder
// decides none of them. A mask's confidence is the value that the strategy ranks by, from the last
// pass that computed the mask. The released code always keeps the first pass's value, because it
// writes into a copy; the option `as_released` does the same. With a token shift, the row before a
// mask takes the mask's place.
#pragma once

#include <memory>

#include "probe/caches/canvas_cache.h"

namespace blockscope {

std::unique_ptr<CanvasCache> make_d2_cache(const CacheOptions& options);

}  // namespace blockscope
