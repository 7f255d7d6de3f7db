// What a policy's rule says it reads, from the passes of a run alone: no attention is computed.
// Under replay of that run it is what PassReads counts, count by count.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "probe/policies/policy_table.h"
#include "probe/run/run_flags.h"
#include "probe/verify/external_reads.h"

namespace blockscope {

/// Heads that may reuse, [num_layers][num_heads].
using ReuseMask = std::vector<std::vector<bool>>;

/// One denoising or commit pass as one sequence saw it.
struct PassRow {
  bool commit = false;
  int64_t block = 0;           // absolute
  int64_t step = 0;            // from 1; 0 for a commit
  int64_t context_length = 0;  // N
  int64_t changed = 0;         // M
  int64_t run_step = 0;        // SequencePass::run_step
  int64_t planned_steps = 0;   // SequencePass::planned_steps
};

/// FlashBlock's rule: at a denoising step that is not its block's first, with M < tau, every head
/// of the mask reuses; a KV head's prefix is read unless all of its query heads do (arXiv
/// 2602.05305, section 4.2).
ExternalReads predicted_reads(const std::vector<PassRow>& rows, int64_t tau, const ReuseMask& mask,
                              const ReadShape& shape);

/// The rule of a sparse policy (docs/policies.md) over the passes of one sequence, in their order:
/// the whole prefix at its dense steps and in its exact layers, the set at every other denoising
/// step; and what choosing reads. nullopt: pages that may or may not hold the short last one (quest
/// where a page does not divide the prefix).
std::optional<ExternalReads> predicted_set_reads(const std::vector<PassRow>& rows,
                                                 const PolicyOptions& policy,
                                                 const ReadShape& shape);

}  // namespace blockscope
