// Decoding with bidirectional models (LLaDA, Dream). The canvas is the prompt and gen_length masks;
// blocks are counted from the prompt's end. Every step is one pass over the rows that the cache
// wants computed. The sequences of a batch are decoded one after another, so prompts of different
// length need no padding. Sources: ML-GSAI/LLaDA `generate.py`; Fast-dLLM `llada/generate.py`,
// `dream/model/generation_utils_block.py`.
#pragma once

#include <cstdint>
#include <vector>

#include "probe/decode/decoder.h"

namespace blockscope {

/// Like decode_batch, for one request.
std::vector<DecodeOutcome> decode_canvas(const BlockDiffusionModel& model, AttentionPolicy& policy,
                                         const DecodeOptions& options, const DecodeRequest& request,
                                         int64_t& next_pass, const DecodeCallbacks& callbacks);

}  // namespace blockscope
