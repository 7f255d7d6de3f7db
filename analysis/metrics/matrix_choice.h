// Finds what a MatrixRequest names: the trace, the slots, the block and its rows. Internal to the
// matrices of `analyze --matrix`.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "analysis/metrics/similarity_matrix.h"

namespace blockscope {

/// Throws UsageError unless there is exactly one.
const TraceReader& the_one_trace(const TraceGroup& traces, const MatrixRequest& request);

/// Recorded slot of the model's index. `word` names it in the error.
std::size_t slot_of(const std::vector<std::int64_t>& recorded, std::int64_t index,
                    const std::string& word);

/// nullptr if the block has no such step, or no arrays of it.
const StepRef* recorded_step(const BlockSteps& block, std::int64_t step);

/// The first block of the selection that recorded these steps; without steps, the first with
/// `fewest` recorded steps.
BlockSteps choose_block(const TraceReader& trace, const MatrixRequest& request,
                        const std::vector<std::int64_t>& steps, std::int64_t fewest);

/// An axis of `size` numbers from `first` on.
ResultAxis numbered(std::string name, std::size_t size, double first);

struct ChosenRow {
  std::int64_t row = 0;
  std::string text;  ///< "sequence 0, block 1, step 2"
};
/// The row of request.steps, which has one step; unset: the first recorded one that `fits`, or the
/// first recorded one if none does.
ChosenRow one_row(const TraceReader& trace, const MatrixRequest& request,
                  const std::function<bool(const StepRef&)>& fits);

}  // namespace blockscope
