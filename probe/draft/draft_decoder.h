// Speculative decoding with a DFlash draft (`dflash/model.py:dflash_generate`). A round begins with
// a block of one certain token and masks. The draft fills the masks in one pass, and the target
// computes the block in one pass. The longest prefix of drafted tokens that equal the target's
// choices is accepted, and the target's next choice is added. The target chose every token,
// greedily or drawn, so the draft changes only the speed.
//
// Observers see one of the two models. A round is a block with one denoising step, which transfers
// the accepted tokens, and a commit, which gives the next token and stores keys. If the draft is
// recorded, the step is the draft's pass and the commit the target's. If the target is recorded,
// the step is the target's pass over the drafted tokens, and the commit has the time of the draft's
// pass. The context of a block is every position before its certain token.
//
// A replay gives the answer: its tokens replace the target's choices. The rounds are then those
// that this draft needs for that answer.
#pragma once

#include <cstdint>
#include <vector>

#include "probe/decode/decoder.h"
#include "probe/draft/draft_model.h"

namespace blockscope {

enum class RecordedModel { draft, target };

struct DraftedRun {
  const BlockDiffusionModel& target;
  const DraftModel& draft;
  int64_t block_length = 0;       // positions of a round: at most the draft's longest_round()
  SamplingOptions sampling;       // for the target; the draft always takes its best token
  std::vector<int64_t> stop_ids;  // searched after each round, in everything after the prompt
  int64_t prefill_chunk = 512;    // positions of a prefill pass
  RecordedModel recorded = RecordedModel::draft;  // the model whose passes observers see
};

/// Decodes the requests as one batch: each round runs for all active sequences. next_pass counts
/// the forward passes of both models. Returns the outcomes in request order. A finished sequence
/// leaves the batch.
std::vector<DecodeOutcome> decode_drafted(const DraftedRun& run,
                                          const std::vector<DecodeRequest>& requests,
                                          int64_t& next_pass,
                                          const DecodeCallbacks& callbacks = {});

}  // namespace blockscope
