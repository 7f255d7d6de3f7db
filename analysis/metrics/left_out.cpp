#include "analysis/metrics/left_out.h"

#include <algorithm>
#include <utility>

namespace blockscope {

void count_missing_pairs(const BlockSteps& block, LeftOut& counts) {
  if (block.steps.size() == 1) ++counts[kOneStep];
  const StepRef* previous = nullptr;
  for (const StepRef& step : block.steps) {
    const bool has_previous =
        previous != nullptr && previous->recorded && previous->step + 1 == step.step;
    if (step.recorded && step.step > 1 && !has_previous) ++counts[kBehindGap];
    previous = &step;
  }
}

void count_rows_without_prefix(const BlockSteps& block, LeftOut& counts) {
  counts[kNoPrefix] += std::ranges::count_if(
      block.steps, [](const StepRef& step) { return step.recorded && step.context_length == 0; });
}

void count_left_out_steps(const std::vector<LeftOutSteps>& layers, const std::string& tau,
                          const std::string& what, LeftOut& counts) {
  std::int64_t hidden = 0;
  std::int64_t unknown = 0;
  for (const LeftOutSteps& layer : layers) {
    hidden = std::max(hidden, layer.hidden);
    unknown = std::max(unknown, layer.unknown);
    counts[kNonFinite] += layer.non_finite;
  }
  counts["steps whose source for tau " + tau + " is hidden by a gap"] = hidden;
  counts["steps whose " + what + " at tau " + tau + " is not in the summary"] = unknown;
}

LeftOut without_zeros(LeftOut counts) {
  std::erase_if(counts, [](const auto& entry) { return entry.second == 0; });
  return counts;
}

}  // namespace blockscope
