// Rows of two captures of the same trajectory, step by step: a trained model and its backbone, an
// exact run and one under a policy. The second is captured with `capture --replay first.h5`; then
// both have seen the same tokens at every step, and their rows can be compared one by one.
#pragma once

#include <cstdint>
#include <vector>

#include "analysis/pass/step_pass.h"

namespace blockscope {

/// Rows [trace of the group][row] of each side that have a recorded partner on the other side.
struct RowPairs {
  std::vector<std::vector<bool>> first;
  std::vector<std::vector<bool>> second;
  std::int64_t pairs = 0;
  std::int64_t only_first = 0;   ///< recorded denoising steps of `first` without a partner
  std::int64_t only_second = 0;  ///< the same of `second`
};

/// Pairs denoising steps by (prompt hash, block, step); the n-th sequence of a prompt with the
/// n-th. Throws UsageError, naming both rows, when a pair differs in what the models saw (tokens
/// decided before it, M, masks, N, block start), and when there is no pair at all.
RowPairs pair_rows(const TraceGroup& first, const TraceGroup& second);

}  // namespace blockscope
