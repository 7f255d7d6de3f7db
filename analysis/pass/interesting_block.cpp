#include "analysis/pass/interesting_block.h"

#include <algorithm>
#include <tuple>
#include <unordered_map>

#include "decode_record/read/end_of_text.h"

namespace blockscope {
namespace {

constexpr std::size_t kMostBlocks = 256;
constexpr std::size_t kMostSteps = 8192;
constexpr std::int64_t kUndecided = -1;  // in place of a token

/// Positions that the block's steps decided, and that hold neither a mask nor an end of text after
/// them.
std::size_t text_positions(const TraceReader& trace, const BlockSteps& block,
                           const EndOfText& ends) {
  std::unordered_map<std::int64_t, std::int64_t> tokens;  // by position
  for (const StepRef& step : block.steps) {
    for (const SequenceDelta& delta : trace.delta(step.row).rows) {
      for (std::size_t i = 0; i < delta.transfer_index.size(); ++i) {
        const bool decided =
            delta.transfer_step.empty() || delta.transfer_step[i] != kUndecodedStep;
        tokens[delta.transfer_index[i]] = decided ? delta.decoded_tokens[i] : kUndecided;
      }
    }
  }
  return static_cast<std::size_t>(std::ranges::count_if(tokens, [&](const auto& decided) {
    return decided.second != kUndecided && !ends.contains(decided.second);
  }));
}

std::size_t step_to_see(const std::vector<StepRef>& steps) {
  const auto first = std::ranges::find(steps, true, &StepRef::recorded);
  if (first == steps.end()) return 0;
  for (std::size_t i = 0; i + 1 < steps.size(); ++i) {
    const bool half = 2 * std::int64_t{steps[i].masks_left} <= steps.front().masks_left;
    if (half && steps[i].recorded && steps[i + 1].recorded) return i;
  }
  return static_cast<std::size_t>(first - steps.begin());
}

}  // namespace

PlaceToSee most_to_see(const TraceReader& trace, const std::vector<BlockSteps>& blocks) {
  if (blocks.empty()) return {};
  const EndOfText ends(trace);
  std::size_t best = 0;
  std::tuple<bool, std::size_t, std::size_t> most;  // recorded, positions of text, steps
  std::size_t steps = 0;
  for (std::size_t i = 0; i < std::min(blocks.size(), kMostBlocks) && steps < kMostSteps; ++i) {
    const BlockSteps& block = blocks[i];
    const bool recorded = std::ranges::any_of(block.steps, &StepRef::recorded);
    const std::tuple here(recorded, text_positions(trace, block, ends), block.steps.size());
    steps += block.steps.size();
    if (i > 0 && here <= most) continue;
    most = here;
    best = i;
  }
  return {best, step_to_see(blocks[best].steps)};
}

}  // namespace blockscope
