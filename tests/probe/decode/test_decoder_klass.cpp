// The decoding loop with KLASS: what a step knows of the steps before it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "probe/decode/decoder.h"
#include "tests/support/tiny_model.h"

namespace blockscope {
namespace {

using namespace testing;  // NOLINT: the helpers of this folder

/// Everything that has a history is ready.
DecodeOptions klass_options() {
  DecodeOptions options = tiny_options();
  options.unmasking.strategy = "klass";
  options.unmasking.kl_threshold = 1e6;
  options.unmasking.threshold = 0.0;
  return options;
}

/// The tokens that each denoising step of one sequence took.
std::vector<size_t> klass_taken_by_step(const PassLog& log) {
  std::vector<size_t> counts;
  for (const ReplayStep& step : log.steps_of(0, kTinyBlock)) counts.push_back(step.tokens.size());
  return counts;
}

TEST(DecoderKlass, HasAKlForEveryPositionAndStepAndStableOnlyWithAHistory) {
  DecodeOptions options = klass_options();
  PassLog log;
  decode_exact(tiny_model(27), options, {tiny_request(0, 8, 8)}, &log);
  // Step 1 falls back on the schedule, step 2 takes all that are left: in each block anew.
  EXPECT_EQ(klass_taken_by_step(log), (std::vector<size_t>{1, 3, 1, 3}));
  for (const PassLog::Entry& pass : log.passes) {
    const SequencePass& sequence = pass.context.sequences[0];
    if (sequence.kind != PassKind::denoise) continue;
    const BlockPrediction& prediction = pass.decisions[0].prediction;
    ASSERT_EQ(prediction.kl.size(), static_cast<size_t>(kTinyBlock));
    for (const double kl : prediction.kl) {
      EXPECT_EQ(std::isnan(kl), sequence.step == 1) << "a block's first step has none before it";
    }
  }
}

TEST(DecoderKlass, ChoosesAmongPositionsWithoutAHistoryByHowFarTheyAreFromNothing) {
  // With one step of history and a threshold above the first step's 27.6 nats less the entropy, all
  // positions are ready at once, and the one of the largest entropy moved least.
  DecodeOptions options = klass_options();
  options.unmasking.kl_history = 1;
  options.unmasking.klass_choose = KlassChoose::kMinKl;
  PassLog log;
  decode_exact(tiny_model(27), options, {tiny_request(0, 8, 8)}, &log);
  EXPECT_EQ(klass_taken_by_step(log), (std::vector<size_t>{1, 1, 1, 1, 1, 1, 1, 1}));
  size_t first_steps = 0;
  for (const PassLog::Entry& pass : log.passes) {
    const SequencePass& sequence = pass.context.sequences[0];
    if (sequence.kind != PassKind::denoise) continue;
    const StepDecision& decision = pass.decisions[0];
    const std::vector<double>& moved = decision.prediction.moved;
    double least = 1e9;
    for (size_t p = 0; p < moved.size(); ++p) {
      if (sequence.masked[p]) least = std::min(least, moved[p]);
    }
    EXPECT_EQ(moved[static_cast<size_t>(decision.selected.at(0))], least);
    if (sequence.step > 1) continue;
    EXPECT_GT(least, 20.0);
    ++first_steps;
  }
  EXPECT_EQ(first_steps, 2U);
}

}  // namespace
}  // namespace blockscope
