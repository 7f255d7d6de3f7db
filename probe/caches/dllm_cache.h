// dLLM-Cache (arXiv 2506.06295) refreshes prompt rows every `prompt_interval` steps of the sequence
// and answer rows every `answer_interval` steps. Between refreshes it projects the values of all
// answer rows. It then recomputes the share `transfer_ratio` of them whose value has the lowest
// cosine with the stored one. All other rows keep the keys, values, attention outputs and FFN
// outputs of the pass that computed them last. The residual stream is current in every row. Layer 0
// computes everything. Sources: maomaocun/dLLM-cache
// `hooks/cache_hook_LLaDA.py:cache_hook_feature`; Kamichanw/d2Cache `src/cache/dllm_cache.py` (the
// same rule).
#pragma once

#include <memory>

#include "probe/caches/canvas_cache.h"

namespace blockscope {

std::unique_ptr<CanvasCache> make_dllm_cache(const CacheOptions& options);

}  // namespace blockscope
