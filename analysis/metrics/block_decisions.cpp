#include "analysis/metrics/block_decisions.h"

namespace blockscope {

BlockDecisions decisions_of(const TraceReader& trace, const BlockSteps& block) {
  const std::int64_t length = trace.info().meta.block_length;
  const auto size = static_cast<std::size_t>(length);
  BlockDecisions decisions{
      std::vector<std::int64_t>(size, -1), std::vector<std::int64_t>(size, -1), {}};
  std::vector<std::uint8_t> masks(size, 1);
  if (block.steps.empty()) return decisions;
  const auto prompt = static_cast<std::int64_t>(trace.sequence(block.sequence).prompt.size());
  const std::int64_t origin = block.steps.front().block_start - prompt;
  for (std::size_t t = 0; t < block.steps.size(); ++t) {
    decisions.masks.push_back(masks);
    for (const SequenceDelta& part : trace.delta(block.steps[t].row).rows) {
      for (std::size_t i = 0; i < part.transfer_index.size(); ++i) {
        const std::int64_t position = part.transfer_index[i] - origin;
        if (position < 0 || position >= length) continue;
        const auto source = static_cast<std::size_t>(
            part.transfer_src_index.empty() ? part.transfer_index[i] : part.transfer_src_index[i]);
        if (source >= part.decoded_tokens.size()) continue;
        const auto at = static_cast<std::size_t>(position);
        decisions.token[at] = part.decoded_tokens[source];
        const bool taken_back =
            !part.transfer_step.empty() && part.transfer_step[i] == kUndecodedStep;
        decisions.index[at] = taken_back ? -1 : static_cast<std::int64_t>(t);
        masks[at] = taken_back ? 1 : 0;
      }
    }
  }
  return decisions;
}

}  // namespace blockscope
