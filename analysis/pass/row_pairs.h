// Pairs the rows of two captures of the same trajectory, such as a trained model and its backbone,
// or an exact run and one with a policy. `capture --replay first.h5` makes the second capture. Both
// then saw the same tokens at every step, so their rows can be compared one by one.
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
  std::int64_t only_second = 0;  ///< the same for `second`
};

/// Pairs denoising steps by (prompt hash, block, step), and the n-th sequence of a prompt with the
/// n-th one. Throws UsageError if the models saw different inputs (tokens decided before, M, masks,
/// N, block start), with both rows in the message, and if no rows pair.
RowPairs pair_rows(const TraceGroup& first, const TraceGroup& second);

}  // namespace blockscope
