// dLLM-Cache (arXiv 2506.06295): prompt rows are refreshed every `prompt_interval` steps of the
// sequence, answer rows every `answer_interval`; between them the values of all answer rows are
// projected, and the `transfer_ratio` of them whose value turned farthest from the stored one are
// computed anew. Keys, values and the outputs of attention and FFN of all other rows are those of
// the pass that computed them last; the residual stream is current in every row. Layer 0 computes
// everything. Sources: maomaocun/dLLM-cache `hooks/cache_hook_LLaDA.py:cache_hook_feature`;
// Kamichanw/d2Cache `src/cache/dllm_cache.py` (the same rule).
#pragma once

#include <memory>

#include "probe/caches/canvas_cache.h"

namespace blockscope {

std::unique_ptr<CanvasCache> make_dllm_cache(const CacheOptions& options);

}  // namespace blockscope
