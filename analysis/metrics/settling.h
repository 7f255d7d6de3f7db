// When the final token of a position is known, and in which order a block is decided.
//
// Settled step (after Prophet, arXiv 2508.19982): the first step from which on every prediction of
// the position is the token that it gets. Predictions count while the position is a mask. A
// position whose last prediction is another token (sampling) settles when it is decided.
//
// AR-ness (DiffuCoder, arXiv 2506.20639), over the decided tokens in their order (by step, then by
// position), for k from 1 to 4:
//   local:  the token and the k - 1 tokens decided before it each stand right after the token that
//           was decided before them; the first k tokens of a block can't, and don't count;
//   global: the token is one of the first k positions that were masks before its step.
//
// Reads /prediction/token and /frames, so it needs level trajectory. Blocks of one position and
// rounds of a draft have no order and are left out.
#pragma once

#include <memory>

#include "analysis/metrics/metrics.h"

namespace blockscope {

/// Arrays: `means` [quantity], `settled_by` [share]: share of the positions that are settled after
/// this share of the block's steps, `agreement` [step]: share of the masks whose prediction is
/// already the final token, `ar_local` and `ar_global` [k].
std::unique_ptr<StepMetric> make_settling_metric();

}  // namespace blockscope
