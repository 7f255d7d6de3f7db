#include "analysis/metrics/matrix_choice.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "decode_record/base/error.h"

namespace blockscope {

const TraceReader& the_one_trace(const TraceGroup& traces, const MatrixRequest& request) {
  if (traces.size() != 1) {
    throw UsageError(
        fmt::format("{}: expected one trace, got {}", request.words.matrix, traces.size()));
  }
  return traces.trace(0);
}

std::size_t slot_of(const std::vector<std::int64_t>& recorded, std::int64_t index,
                    const std::string& word) {
  const auto found = std::ranges::find(recorded, index);
  if (found == recorded.end()) {
    throw UsageError(fmt::format("{}: {} was not recorded. HINT: the trace has {}", word, index,
                                 fmt::join(recorded, ",")));
  }
  return static_cast<std::size_t>(found - recorded.begin());
}

const StepRef* recorded_step(const BlockSteps& block, std::int64_t step) {
  const auto found = std::ranges::find(block.steps, step, &StepRef::step);
  return found == block.steps.end() || !found->recorded ? nullptr : &*found;
}

BlockSteps choose_block(const TraceReader& trace, const MatrixRequest& request,
                        const std::vector<std::int64_t>& steps, std::int64_t fewest) {
  const auto blocks = list_blocks(trace, request.rows);
  for (const BlockSteps& block : blocks) {
    const auto has = [&](std::int64_t step) { return recorded_step(block, step) != nullptr; };
    const bool enough = std::ranges::count_if(block.steps, &StepRef::recorded) >= fewest;
    if (steps.empty() ? enough : std::ranges::all_of(steps, has)) return block;
  }
  throw UsageError(fmt::format(
      "{}: none of {} blocks of {} has {} recorded. HINT: {} select others", request.words.matrix,
      blocks.size(), trace.info().path,
      !steps.empty()
          ? fmt::format("step{} {}", steps.size() > 1 ? "s" : "", fmt::join(steps, " and "))
      : fewest == 1 ? "a step"
                    : "two steps",
      request.words.others));
}

ResultAxis numbered(std::string name, std::size_t size, double first) {
  ResultAxis axis{std::move(name), std::vector<double>(size), {}};
  std::iota(axis.index.begin(), axis.index.end(), first);
  return axis;
}

ChosenRow one_row(const TraceReader& trace, const MatrixRequest& request,
                  const std::function<bool(const StepRef&)>& fits) {
  if (request.steps.size() > 1) {
    throw UsageError(fmt::format("{}: an attention map takes one step, got {}", request.words.step,
                                 request.steps.size()));
  }
  const auto chosen = [](const BlockSteps& block, const StepRef& step) {
    return ChosenRow{step.row, fmt::format("sequence {}, block {}, step {}", block.sequence,
                                           block.block, step.step)};
  };
  const BlockSteps first = choose_block(trace, request, request.steps, 1);
  if (!request.steps.empty()) return chosen(first, *recorded_step(first, request.steps[0]));
  for (const BlockSteps& block : list_blocks(trace, request.rows)) {
    const auto found = std::ranges::find_if(
        block.steps, [&](const StepRef& step) { return step.recorded && fits(step); });
    if (found != block.steps.end()) return chosen(block, *found);
  }
  return chosen(first, *std::ranges::find(first.steps, true, &StepRef::recorded));
}

}  // namespace blockscope
