// Quest (arXiv 2406.10774; mit-han-lab/Quest 01c1623) with one set per block (MAGE, section 3.1).
// Every step reads the ceil(k / p) pages of p keys with the largest bound. A page's bound is the
// mean of sum_d max(q_d max_d, q_d min_d) over the G * B queries of a KV head. Keys are post-RoPE;
// ties go to the earlier page. The last page may be short and is scored like the others, as in the
// released evaluation code (evaluation/quest_attention.py). Two rules are not followed: the
// released kernels always attend to the last page without scoring it, and the released evaluation
// takes at least 3 pages. Bounds are kept, and extended when blocks are committed.
#pragma once

#include <cstdint>
#include <memory>

#include "probe/policies/selection_policy.h"

namespace blockscope {

/// `options.k` or density gives the number of keys, and so the number of pages that hold them.
/// Throws UsageError for page_size < 1.
std::unique_ptr<AttentionPolicy> make_quest_policy(const SelectionOptions& options,
                                                   int64_t page_size);

}  // namespace blockscope
