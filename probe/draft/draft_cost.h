// What a round costs, measured: how long a target's pass over a block takes, and what its draft
// adds, for blocks of several lengths. With the acceptance of one run it predicts how fast others
// would be (analysis/metrics/draft.h).
#pragma once

#include <cstdint>
#include <vector>

#include "decode_record/schema/trace_meta.h"
#include "probe/draft/draft_model.h"

namespace blockscope {

/// The entries that measure_draft_cost fills: blocks of 1, 2, 4, ... and `block_length` positions,
/// each behind `context_length` keys; no times yet.
std::vector<DraftCost> draft_cost_plan(std::int64_t block_length, std::int64_t context_length);

/// Fills the times: medians of passes over random tokens and random keys. All lengths take turns,
/// so that what slows the machine for a while slows all of them; at least 3 turns, at most 15,
/// further ones not after 2 s. A turn is two rounds of each length, of which the second counts.
///   target_ns  layers, LM head and best tokens of the block;
///   draft_ns   0 for a block of 1; else the context features and keys of as many positions as the
///              block has, the draft's pass, its LM head and best tokens.
void measure_draft_cost(const BlockDiffusionModel& target, const DraftModel& draft,
                        std::vector<DraftCost>& costs);

}  // namespace blockscope
