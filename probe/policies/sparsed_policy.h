// SparseD (arXiv 2509.24014; INV-WZQ/SparseD 52155b4) on block diffusion. The sets come from one
// step that reads everything, and are never refreshed.
//   run: steps 0 .. int(0.2 * steps) + 1 of the run, counted from 0 over all blocks, read
//     everything; the last of them gives the sets (LLaDA/modeling: end_time). `steps` is the number
//     of steps if no block ends early. Keys that are committed later cannot be selected.
//   per block: the first step of every block reads everything and gives the block's sets
//     (FlashBlock, appendix D).
// The released code selects per query head, in blocks of 128 keys (32 for short contexts). Here one
// set per KV head and block holds the k keys with the largest mean probability, as in MAGE's
// comparison (MAGE, section 3.1). The released scale of 1/sqrt(num_heads) for LLaDA is a mistake
// and not followed. With `residual` (per block only): see mage_policy.h.
#pragma once

#include <memory>

#include "probe/policies/selection_policy.h"

namespace blockscope {

enum class SparseDScope { run, block };

/// Throws UsageError for a residual with scope `run`: a residual belongs to one block's queries.
std::unique_ptr<AttentionPolicy> make_sparsed_policy(const SelectionOptions& options,
                                                     SparseDScope scope);

/// The step of the run, from 1, that gives the sets. All steps up to it read everything.
int64_t sparsed_capture_step(int64_t planned_steps);

}  // namespace blockscope
