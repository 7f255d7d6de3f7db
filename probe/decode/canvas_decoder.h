// Decoding with bidirectional models (LLaDA, Dream): the canvas is the prompt and gen_length masks,
// blocks count from the prompt's end, and every step is one pass over the rows that the
// cache wants computed. Sources: ML-GSAI/LLaDA `generate.py`; Fast-dLLM `llada/generate.py`,
// `dream/model/generation_utils_block.py`. The sequences of a batch are decoded one after another:
// prompts of different length need no padding.
#pragma once

#include <cstdint>
#include <vector>

#include "probe/decode/decoder.h"

namespace blockscope {

/// As decode_batch, for one request.
std::vector<DecodeOutcome> decode_canvas(const BlockDiffusionModel& model, AttentionPolicy& policy,
                                         const DecodeOptions& options, const DecodeRequest& request,
                                         int64_t& next_pass, const DecodeCallbacks& callbacks);

}  // namespace blockscope
