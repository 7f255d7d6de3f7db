// d2Cache (arXiv 2509.23094; Kamichanw/d2Cache `src/cache/d2cache.py`): after every step the rows
// of the next pass are chosen in two stages.
//   1. Masks that are about to be decided: the `current_k` masks of a window with the highest
//      confidence * certainty density; the window begins with the block and ends with the block
//      that holds the current_k-th mask. Masks of the block come before all others. Positions that
//      the step chose are recomputed too.
//   2. Of all other rows the fewest that cover `rollout_p` of the attention rollout into them, at
//      least one; then gaps of at most `inflate_window` between chosen rows are filled.
// Keys and values of other rows stay; their predictions do not exist, and the decoder decides none.
// The confidence of a mask is what the strategy ranks by, of the pass that computed it last. As
// released it is always the first pass's (a write into a copy): `as_released`. Under a token shift
// the row before a mask stands for it.
#pragma once

#include <memory>

#include "probe/caches/canvas_cache.h"

namespace blockscope {

std::unique_ptr<CanvasCache> make_d2_cache(const CacheOptions& options);

}  // namespace blockscope
