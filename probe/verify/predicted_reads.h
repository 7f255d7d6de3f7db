// Predicts from the passes of a run what a policy reads by its rule, without computing attention.
// Under replay of that run, PassReads must count exactly the same.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "decode_record/schema/reuse_masks.h"
#include "probe/policies/policy_table.h"
#include "probe/run/run_flags.h"
#include "probe/verify/external_reads.h"

namespace blockscope {

/// One denoising or commit pass as one sequence saw it.
struct PassRow {
  bool commit = false;
  int64_t block = 0;                    // absolute
  int64_t step = 0;                     // from 1; 0 for a commit
  int64_t context_length = 0;           // N
  int64_t changed = 0;                  // M
  int64_t decided = 0;                  // SequencePass::decided
  int64_t run_step = 0;                 // SequencePass::run_step
  int64_t planned_steps = 0;            // SequencePass::planned_steps
  std::vector<bool> changed_rows = {};  // SequencePass::changed_rows, [B]
  std::vector<bool> masked = {};        // SequencePass::masked, [B]
};

/// FlashBlock's rule (reuse_rule.h) over the passes of one sequence, in their order: every head of
/// the step's mask reuses. With a bound, that decides in place of tau and count. A KV head's prefix
/// is not read if all of its query heads reuse.
ExternalReads predicted_reads(const std::vector<PassRow>& rows, const ReuseRule& rule,
                              const ReuseMasks& masks, const LayerSizes& shape,
                              const std::optional<ErrorBound>& bound = {});

/// The rule of a sparse policy (docs/policies.md) over the passes of one sequence, in their order.
/// It reads the whole prefix at its dense steps and in its exact layers, the set at every other
/// denoising step, and what choosing needs. nullopt: the rule can't say whether the set holds the
/// short last page (quest, if a page does not divide the prefix).
std::optional<ExternalReads> predicted_set_reads(const std::vector<PassRow>& rows,
                                                 const PolicyOptions& policy,
                                                 const LayerSizes& shape);

}  // namespace blockscope
