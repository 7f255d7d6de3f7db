// Batches for a DFlash draft (stage draft; arXiv 2602.06036; SpecForge `core/dflash.py`). The
// target goes over a document as a backbone does; of its hidden states the draft makes its context.
// An answer has anchors, which are the certain tokens of rounds: a block is the anchor and masks,
// sees the target's rows before the anchor and itself in both directions, and predicts the answer's
// tokens behind the anchor. Position k of a block weighs exp(-(k - 1) / gamma): a draft is accepted
// only where all before it are.
#pragma once

#include <cstdint>
#include <vector>

#include "probe/train/training_batch.h"

namespace blockscope {

struct DraftBatchSpec {
  std::int64_t block_length = 16;  // an anchor and block_length - 1 masks
  std::int64_t anchors = 3;        // of an answer, its first token among them; 0: all
};

/// DFlash's gamma by block length, 4 for 8 positions and 7 for 16, on a line.
double draft_loss_gamma(std::int64_t block_length);

/// The loss rows of a question stand by anchor, ascending, and by position behind it, up to the end
/// token.
TrainingBatch make_draft_batch(const std::vector<TaskDocument>& documents, const TaskTokens& tokens,
                               const DraftBatchSpec& spec, TaskRandom& random);

}  // namespace blockscope
