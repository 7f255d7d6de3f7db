#include "probe/decode/step_decision.h"

#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "decode_record/error.h"

namespace blockscope {

void check_finite(const SequencePass& pass, const BlockPrediction& prediction) {
  for (size_t p = 0; p < prediction.top1_confidence.size(); ++p) {
    if (std::isfinite(prediction.top1_confidence[p])) continue;
    throw CheckpointError(fmt::format(
        "sequence {}, block {}, step {}, position {} of the block: expected finite logits, got "
        "NaN or infinity. HINT: the weights hold such values (a conversion that went wrong), or "
        "the model overflows its type: try --dtype float32",
        pass.sequence, pass.block, pass.step, p));
  }
}

StepDecision choose_tokens(const DecodeOptions& options, const SequencePass& pass,
                           BlockPrediction prediction) {
  StepDecision decision;
  decision.prediction = std::move(prediction);
  if (options.autoregressive()) {
    decision.transferred = {0};
    return decision;
  }
  decision.transferred =
      select_transfers(options.unmasking, pass.step - 1, decision.prediction, pass.masked);
  decision.selected = decision.transferred;
  std::erase_if(decision.transferred, [&](int64_t p) {
    return decision.prediction.token[static_cast<size_t>(p)] == options.mask_token_id;
  });
  return decision;
}

StepDecision replayed_tokens(const ReplayStep& step, int64_t block_start,
                             BlockPrediction prediction) {
  StepDecision decision;
  decision.prediction = std::move(prediction);
  for (size_t i = 0; i < step.positions.size(); ++i) {
    const int64_t position = step.positions[i] - block_start;
    decision.transferred.push_back(position);
    decision.prediction.token[static_cast<size_t>(position)] = step.tokens[i];
    decision.prediction.confidence[static_cast<size_t>(position)] = step.confidence[i];
  }
  return decision;
}

}  // namespace blockscope
