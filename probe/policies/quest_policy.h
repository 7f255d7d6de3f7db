// Quest (arXiv 2406.10774; mit-han-lab/Quest 01c1623) with one set per block (MAGE, section 3.1):
// at every step the ceil(k / p) pages of p keys whose bound is largest, the bound being the mean
// over the G * B queries of a KV head of sum_d max(q_d max_d, q_d min_d). Post-RoPE keys, ties to
// the earlier page, the last page may be short and is scored like the others, as in the released
// evaluation code (evaluation/quest_attention.py); the released kernels leave it out of the
// estimate and always attend to it, and the evaluation takes at least 3 pages: neither is followed.
// Bounds are kept and grow as blocks are committed.
#pragma once

#include <cstdint>
#include <memory>

#include "probe/policies/selection_policy.h"

namespace blockscope {

/// `options.k` or density decides the pages: as many as hold that many keys. Throws UsageError for
/// page_size < 1.
std::unique_ptr<AttentionPolicy> make_quest_policy(const SelectionOptions& options,
                                                   int64_t page_size);

}  // namespace blockscope
