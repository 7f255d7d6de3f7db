// Speculative decoding with a DFlash draft (`dflash/model.py:dflash_generate`). A round: the draft
// fills a block of one certain token and masks in one pass, the target goes over the block in one
// pass, and the longest prefix of drafted tokens that are what the target chose is accepted, with
// the target's choice behind it. Every token is one that the target chose, greedily or drawn, so
// the draft changes speed alone.
//
// For observers the draft is the model: a round is a block with one denoising step (the draft's
// pass; it transfers the accepted tokens) and a commit (the target's pass, which tells the next
// token and stores the context's keys). The context of a block is every position before its certain
// token.
#pragma once

#include <cstdint>
#include <vector>

#include "probe/decode/decoder.h"
#include "probe/draft/draft_model.h"

namespace blockscope {

struct DraftedRun {
  const BlockDiffusionModel& target;
  const DraftModel& draft;
  int64_t block_length = 0;       // of a round: the draft's block_size, or fewer positions
  SamplingOptions sampling;       // of the target; the draft always takes its best token
  std::vector<int64_t> stop_ids;  // looked for after each round, in everything behind the prompt
  int64_t prefill_chunk = 512;    // positions of a prefill pass
};

/// Decodes the requests one after another; next_pass counts forward passes of both models. Throws
/// UsageError for a replayed request.
std::vector<DecodeOutcome> decode_drafted(const DraftedRun& run,
                                          const std::vector<DecodeRequest>& requests,
                                          int64_t& next_pass,
                                          const DecodeCallbacks& callbacks = {});

}  // namespace blockscope
