#include "probe/decode/canvas_decision.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>

#include "kernels/row_ops.h"
#include "probe/model/device.h"

namespace blockscope {
namespace {

/// How many of the positions that a step of a canvas changes were accepted before.
int64_t decided_among(const StepDecision& decision, const SequencePass& pass) {
  const auto decided = [&](int64_t p) { return !pass.masked[static_cast<size_t>(p)]; };
  return std::ranges::count_if(decision.transferred, decided) +
         std::ranges::count_if(decision.noise, [&](const Noise& one) {
           return decided(one.position - pass.block_start);
         });
}

}  // namespace

int64_t random_token(const DecodeOptions& options, const StreamId& stream, int64_t position,
                     int64_t vocab_size) {
  // The draws of a step's positions come first in its stream, then those of its noise.
  const double u = uniform_draw(options.sampling.seed, stream, options.block_length() + position);
  return std::min(static_cast<int64_t>(u * static_cast<double>(vocab_size)), vocab_size - 1);
}

std::vector<Noise> noise_of(const ReplayStep& step) {
  std::vector<Noise> noise;
  for (size_t i = 0; i < step.noise_positions.size(); ++i) {
    noise.push_back({step.noise_positions[i], step.noise_tokens[i]});
  }
  return noise;
}

void finish_canvas_step(const DecodeOptions& options, const StepInput& input,
                        const at::Tensor& logits, StepDecision& decision) {
  const SequencePass& pass = input.pass;
  const int64_t vocab_size = logits.size(-1);
  decision.prediction.top1_confidence = best_tokens(logits).probability;
  const auto length = static_cast<int64_t>(pass.masked.size());
  if (input.replay != nullptr) {
    decision.noise = noise_of(*input.replay);
    decision.edited.clear();  // noise is no token that another one replaces
    decision.decided_before = decided_among(decision, pass);
    return;
  }
  BlockPrediction& prediction = decision.prediction;
  const bool settled = canvas_settled(options.unmasking, prediction, input.memory.canvas);
  if (settled || pass.step >= options.unmasking.denoising_steps) {
    prediction.token = prediction.top1;
    prediction.confidence = prediction.top1_confidence;
    decision.selected.resize(static_cast<size_t>(length));
    std::iota(decision.selected.begin(), decision.selected.end(), 0);
    decision.transferred = decision.selected;
    decision.decided_before = decided_among(decision, pass);
    decision.ends_canvas = true;
    return;
  }
  std::vector<int64_t> taken;
  for (const int64_t p : decision.transferred) {
    taken.push_back(prediction.token[static_cast<size_t>(p)]);
  }
  const std::vector<float> odds =
      token_odds(logits.index_select(0, index_on(decision.transferred, logits.device())), taken)
          .probability;
  for (size_t i = 0; i < odds.size(); ++i) {
    prediction.confidence[static_cast<size_t>(decision.transferred[i])] = odds[i];
  }
  const StreamId stream{pass.prompt_hash, pass.block, pass.step};
  for (int64_t p = 0; p < length; ++p) {
    if (std::ranges::binary_search(decision.transferred, p)) continue;
    decision.noise.push_back({pass.block_start + p, random_token(options, stream, p, vocab_size)});
  }
  decision.decided_before = decided_among(decision, pass);
}

}  // namespace blockscope
