// Caches that recompute by block: none, prefix and dual.
// Source: Fast-dLLM, arXiv 2505.22618, sections 3.2 and 3.3; `llada/generate.py`
// (generate_with_prefix_cache, generate_with_dual_cache), `dream/model/generation_utils_block.py`.
// The first pass of every block computes the whole canvas and replaces every key. Later passes
// compute the block and everything after it (prefix) or the block alone (dual). They read the other
// positions' keys as of the first pass. The block's own keys are written at every pass.
#pragma once

#include <memory>

#include "probe/caches/canvas_cache.h"

namespace blockscope {

/// Every pass computes everything: the reference of all other caches.
std::unique_ptr<CanvasCache> make_no_cache();
std::unique_ptr<CanvasCache> make_prefix_cache();
std::unique_ptr<CanvasCache> make_dual_cache();

}  // namespace blockscope
