// Batches for a DFlash draft (stage draft; arXiv 2602.06036; SpecForge `core/dflash.py`). The
// target processes a document as a backbone does. The draft makes its context of the target's
// hidden states. An answer has anchors, which are the certain tokens of rounds. A block is an
// anchor and masks. It sees the target's rows before the anchor, and itself in both directions. It
// predicts the answer's tokens after the anchor. Position k of a block has the weight exp(-(k - 1)
// / gamma): a drafted token is accepted only if all before it are.
#pragma once

#include <cstdint>
#include <vector>

#include "probe/train/training_batch.h"

namespace blockscope {

struct DraftBatchSpec {
  std::int64_t block_length = 16;  // an anchor and block_length - 1 masks
  std::int64_t anchors = 3;        // per answer, with its first token; 0: all tokens
};

/// DFlash's gamma by block length: linear, 4 for 8 positions and 7 for 16.
double draft_loss_gamma(std::int64_t block_length);

/// The loss rows of a question are ordered by anchor, then by position after the anchor, up to the
/// end token.
TrainingBatch make_draft_batch(const std::vector<TaskDocument>& documents, const TaskTokens& tokens,
                               const DraftBatchSpec& spec, TaskRandom& random);

}  // namespace blockscope
