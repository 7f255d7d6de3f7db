// Speculative decoding with a DFlash draft (`dflash/model.py:dflash_generate`). A round: the draft
// fills a block of one certain token and masks in one pass, the target goes over the block in one
// pass, and the longest prefix of drafted tokens that are what the target chose is accepted, with
// the target's choice behind it. Every token is one that the target chose, greedily or drawn, so
// the draft changes speed alone.
//
// For observers one of the two is the model. A round is a block with one denoising step, which
// transfers the accepted tokens, and a commit, which tells the next token and stores keys. Of the
// draft, the step is its own pass and the commit the target's; of the target, the step is its pass
// over the drafts and the commit has the time of the draft's. The context of a block is every
// position before its certain token.
//
// A replay gives the answer: its tokens stand for the target's choice, so that the rounds are those
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
  int64_t block_length = 0;       // of a round: the draft's block_size, or fewer positions
  SamplingOptions sampling;       // of the target; the draft always takes its best token
  std::vector<int64_t> stop_ids;  // looked for after each round, in everything behind the prompt
  int64_t prefill_chunk = 512;    // positions of a prefill pass
  RecordedModel recorded = RecordedModel::draft;  // whose passes observers are shown
};

/// Decodes the requests as one batch, whose rounds go side by side; next_pass counts forward passes
/// of both models. Returns the outcomes in request order. A sequence whose rounds end leaves the
/// batch.
std::vector<DecodeOutcome> decode_drafted(const DraftedRun& run,
                                          const std::vector<DecodeRequest>& requests,
                                          int64_t& next_pass,
                                          const DecodeCallbacks& callbacks = {});

}  // namespace blockscope
