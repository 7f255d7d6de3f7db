// Measures the cost of a round for blocks of several lengths: the time of a target's pass over a
// block, and what its draft adds. With the acceptance of one run, these times predict the speed of
// other block lengths (analysis/metrics/draft.h).
#pragma once

#include <cstdint>
#include <vector>

#include "decode_record/schema/trace_meta.h"
#include "probe/draft/draft_model.h"

namespace blockscope {

/// The entries that measure_draft_cost fills, without times: blocks of 1, 2, 4, ... and
/// `block_length` positions, each after `context_length` keys.
std::vector<DraftCost> draft_cost_plan(std::int64_t block_length, std::int64_t context_length);

/// Fills the times: medians of passes over random tokens and random keys. All lengths take turns,
/// so a slow phase of the machine affects all of them. There are 3 to 15 turns; after 2 s no new
/// turn starts beyond the third. A turn is two rounds of each length; only the second is measured.
///   target_ns  layers, LM head and best tokens of the block;
///   draft_ns   0 for a block of 1; else the context features and keys of as many positions as the
///              block has, the draft's pass, its LM head and best tokens.
void measure_draft_cost(const BlockDiffusionModel& target, const DraftModel& draft,
                        std::vector<DraftCost>& costs);

}  // namespace blockscope
