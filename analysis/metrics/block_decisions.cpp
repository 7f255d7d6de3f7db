#include "analysis/metrics/block_decisions.h"

#include "decode_record/frames/token_changes.h"

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
  const std::int64_t mask = trace.info().meta.undecided_token();
  std::vector<std::int64_t> tokens(size, mask);
  for (std::size_t t = 0; t < block.steps.size(); ++t) {
    decisions.masks.push_back(masks);
    for (const SequenceDelta& part : trace.delta(block.steps[t].row).rows) {
      for (const TokenChange& change :
           follow_delta(tokens, origin, part, mask, origin + length).changes) {
        const auto at = static_cast<std::size_t>(change.position - origin);
        if (at >= size) continue;
        const bool masked = change.after == mask;
        decisions.token[at] = change.after;
        decisions.index[at] = masked ? -1 : static_cast<std::int64_t>(t);
        masks[at] = masked ? 1 : 0;
      }
      tokens.resize(size, mask);
    }
  }
  return decisions;
}

}  // namespace blockscope
