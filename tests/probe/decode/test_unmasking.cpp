// The unmasking rules on hand-made predictions: counts, ties, thresholds and what is left alone.
#include "probe/strategies/unmasking.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "decode_record/base/error.h"
#include "tests/support/seed.h"

namespace blockscope {
namespace {

using ::testing::ElementsAre;
using testing::SeededRandom;

UnmaskingOptions options_of(std::string strategy, int64_t block_length, int64_t steps) {
  UnmaskingOptions options;
  options.strategy = strategy;
  options.block_length = block_length;
  options.denoising_steps = steps;
  return options;
}

BlockPrediction with_confidence(std::vector<float> confidence) {
  BlockPrediction prediction;
  prediction.token.assign(confidence.size(), 7);
  prediction.top1 = prediction.token;
  prediction.entropy.assign(confidence.size(), 1.0F);
  prediction.top1_confidence = confidence;
  prediction.confidence = std::move(confidence);
  return prediction;
}

BlockPrediction with_entropy(std::vector<float> entropy) {
  BlockPrediction prediction = with_confidence(std::vector<float>(entropy.size(), 0.5F));
  prediction.entropy = std::move(entropy);
  return prediction;
}

std::vector<bool> all_masked(size_t count) { return std::vector<bool>(count, true); }

TEST(UnmaskingSchedule, GivesTheRemainderToTheFirstStepsAndSumsToTheBlock) {
  for (int64_t block = 1; block <= 33; ++block) {
    for (int64_t steps = 1; steps <= block; ++steps) {
      const UnmaskingOptions options = options_of("low_confidence_static", block, steps);
      int64_t sum = 0;
      for (int64_t step = 0; step < steps; ++step) {
        const int64_t count = num_transfer_tokens(options, step, block);
        EXPECT_EQ(count, block / steps + (step < block % steps ? 1 : 0));
        sum += count;
      }
      EXPECT_EQ(sum, block) << block << " positions, " << steps << " steps";
    }
  }
}

TEST(UnmaskingSequential, TakesConsecutivePositionsFromTheFirstMask) {
  const UnmaskingOptions options = options_of("sequential", 6, 3);
  const BlockPrediction prediction = with_confidence({.1F, .2F, .3F, .9F, .9F, .9F});
  EXPECT_THAT(select_transfers(options, 0, prediction, all_masked(6)), ElementsAre(0, 1));
  EXPECT_THAT(select_transfers(options, 1, prediction, {false, false, true, true, true, true}),
              ElementsAre(2, 3));
}

TEST(UnmaskingSequential, IsCutAtTheEndOfTheBlock) {
  const UnmaskingOptions options = options_of("sequential", 6, 2);
  const BlockPrediction prediction = with_confidence({.1F, .2F, .3F, .9F, .9F, .9F});
  EXPECT_THAT(select_transfers(options, 1, prediction, {false, false, false, false, false, true}),
              ElementsAre(5));
}

TEST(UnmaskingSequential, DoesNotOverwriteATokenInsideItsRun) {
  // A selected position that stayed masked (its argmax was the mask) leaves such a hole.
  const UnmaskingOptions options = options_of("sequential", 6, 2);
  const BlockPrediction prediction = with_confidence({.1F, .2F, .3F, .9F, .9F, .9F});
  EXPECT_THAT(select_transfers(options, 1, prediction, {true, false, true, true, true, true}),
              ElementsAre(0, 2));
}

TEST(UnmaskingSequential, CountsItsRunInPositionsNotInMasksLeft) {
  // Two masks are left, three positions are due: the run ends after position 2.
  const UnmaskingOptions options = options_of("sequential", 6, 2);
  const BlockPrediction prediction = with_confidence({.1F, .2F, .3F, .9F, .9F, .9F});
  EXPECT_THAT(select_transfers(options, 1, prediction, {true, false, true, false, false, false}),
              ElementsAre(0, 2));
}

TEST(UnmaskingStatic, TakesTheMostConfidentMasks) {
  const UnmaskingOptions options = options_of("low_confidence_static", 5, 2);
  const BlockPrediction prediction = with_confidence({.5F, .9F, .1F, .8F, .7F});
  EXPECT_THAT(select_transfers(options, 0, prediction, all_masked(5)), ElementsAre(1, 3, 4));
  EXPECT_THAT(select_transfers(options, 1, prediction, all_masked(5)), ElementsAre(1, 3));
}

TEST(UnmaskingStatic, BreaksTiesToTheLowerPosition) {
  const UnmaskingOptions options = options_of("low_confidence_static", 6, 3);
  EXPECT_THAT(
      select_transfers(options, 0, with_confidence({.5F, .5F, .5F, .5F, .5F, .5F}), all_masked(6)),
      ElementsAre(0, 1));
  EXPECT_THAT(
      select_transfers(options, 0, with_confidence({.1F, .5F, .5F, .9F, .5F, .5F}), all_masked(6)),
      ElementsAre(1, 3));
}

TEST(UnmaskingStatic, TakesNoMoreThanTheMasksLeftHoweverConfidentTheTokensAre) {
  // The official code overwrites tokens here, prompt tokens included.
  const UnmaskingOptions options = options_of("low_confidence_static", 6, 2);
  const BlockPrediction prediction = with_confidence({.9F, .9F, .9F, .9F, .9F, .01F});
  EXPECT_THAT(select_transfers(options, 0, prediction, {false, false, false, false, false, true}),
              ElementsAre(5));
}

TEST(UnmaskingDynamic, TakesEverythingStrictlyAboveTheThreshold) {
  UnmaskingOptions options = options_of("low_confidence_dynamic", 4, 4);
  options.threshold = 0.5;
  EXPECT_THAT(select_transfers(options, 0, with_confidence({.51F, .5F, .9F, .6F}), all_masked(4)),
              ElementsAre(0, 2, 3));
}

TEST(UnmaskingDynamic, FallsBackToTheScheduleWhenTooFewAreAbove) {
  UnmaskingOptions options = options_of("low_confidence_dynamic", 4, 2);
  options.threshold = 0.8;
  const BlockPrediction prediction = with_confidence({.1F, .9F, .3F, .2F});
  EXPECT_THAT(select_transfers(options, 0, prediction, all_masked(4)), ElementsAre(1, 2));
  EXPECT_THAT(select_transfers(options, 0, prediction, {true, false, false, false}),
              ElementsAre(0));
}

TEST(UnmaskingThreshold, TakesEqualConfidenceTooAndAlwaysTheBest) {
  UnmaskingOptions options = options_of("threshold", 4, 4);
  options.threshold = 0.5;
  EXPECT_THAT(select_transfers(options, 0, with_confidence({.49F, .5F, .9F, .1F}), all_masked(4)),
              ElementsAre(1, 2));
  EXPECT_THAT(select_transfers(options, 0, with_confidence({.1F, .3F, .3F, .2F}), all_masked(4)),
              ElementsAre(1));
}

TEST(UnmaskingThreshold, CountsOnlyMaskedPositionsAsTheBest) {
  UnmaskingOptions options = options_of("threshold", 3, 3);
  options.threshold = 0.9;
  EXPECT_THAT(select_transfers(options, 0, with_confidence({.99F, .2F, .3F}), {false, true, true}),
              ElementsAre(2));
}

// Fast-dLLM's loop, written as in the paper's code.
size_t factor_count(std::vector<double> confidence, double factor) {
  std::sort(confidence.rbegin(), confidence.rend());
  const size_t ranks = confidence.size();
  size_t top = 0;
  for (top = 0; top < ranks; ++top) {
    const double n = static_cast<double>(top) + 1.0;
    const double needed = top == 0 ? -1.0 : 1.0 - factor / (n + 1.0);
    if (confidence[top] < needed) break;
    if (top == ranks - 1) break;
  }
  return top == 0 || top == ranks - 1 ? top + 1 : top;
}

TEST(UnmaskingFactor, StopsAtTheFirstRankBelowItsThreshold) {
  // factor 1: rank 2 needs 2/3, rank 3 needs 3/4, rank 4 needs 4/5.
  UnmaskingOptions options = options_of("factor", 5, 5);
  options.factor = 1.0;
  EXPECT_THAT(
      select_transfers(options, 0, with_confidence({.1F, .7F, .74F, .9F, .1F}), all_masked(5)),
      ElementsAre(2, 3));
  EXPECT_THAT(
      select_transfers(options, 0, with_confidence({.6F, .9F, .1F, .2F, .3F}), all_masked(5)),
      ElementsAre(1));
}

TEST(UnmaskingFactor, TakesTheLastRankAsWellWhenOnlyThatOneFails) {
  UnmaskingOptions options = options_of("factor", 3, 3);
  options.factor = 1.0;
  EXPECT_THAT(select_transfers(options, 0, with_confidence({.9F, .8F, .01F}), all_masked(3)),
              ElementsAre(0, 1, 2));
  EXPECT_THAT(select_transfers(options, 0, with_confidence({.9F, .1F, .01F}), all_masked(3)),
              ElementsAre(0));
}

TEST(UnmaskingFactor, AgreesWithTheLoopOfThePaper) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    SeededRandom random(seed);
    const size_t count = static_cast<size_t>(random.integer(1, 12));
    std::vector<float> confidence;
    for (size_t i = 0; i < count; ++i) {
      confidence.push_back(static_cast<float>(1.0 - 0.6 * random.uniform() * random.uniform()));
    }
    UnmaskingOptions options = options_of("factor", static_cast<int64_t>(count), 1);
    options.factor = 0.25 + 1.5 * random.uniform();
    EXPECT_EQ(select_transfers(options, 0, with_confidence(confidence), all_masked(count)).size(),
              factor_count({confidence.begin(), confidence.end()}, options.factor));
  }
}

TEST(UnmaskingEntropy, TakesThoseWhoseCumulativeSumStaysBelowTheThreshold) {
  UnmaskingOptions options = options_of("entropy_bounded", 4, 4);
  options.eb_threshold = 0.5;
  // Sorted: 0.125, 0.25, 0.25, 1: sums 0.125, 0.375, 0.625.
  EXPECT_THAT(select_transfers(options, 0, with_entropy({1.F, .25F, .125F, .25F}), all_masked(4)),
              ElementsAre(1, 2));
}

TEST(UnmaskingEntropy, LeavesOutASumThatEqualsTheThreshold) {
  UnmaskingOptions options = options_of("entropy_bounded", 3, 3);
  options.eb_threshold = 0.5;
  EXPECT_THAT(select_transfers(options, 0, with_entropy({.25F, .25F, .25F}), all_masked(3)),
              ElementsAre(0));
}

TEST(UnmaskingEntropy, TakesOneAtLeastAndTheMasksLeftAtMost) {
  UnmaskingOptions options = options_of("entropy_bounded", 4, 4);
  options.eb_threshold = 0.0;
  EXPECT_THAT(select_transfers(options, 0, with_entropy({.9F, .3F, .3F, .4F}), all_masked(4)),
              ElementsAre(1));
  options.eb_threshold = 100.0;
  EXPECT_THAT(
      select_transfers(options, 0, with_entropy({.9F, .3F, .3F, .4F}), {false, true, false, true}),
      ElementsAre(1, 3));
}

TEST(UnmaskingRules, ChooseDistinctMaskedPositionsInOrderForAnyInput) {
  for (uint64_t seed = 0; seed < 400; ++seed) {
    SCOPED_TRACE(seed);
    SeededRandom random(seed);
    const int64_t block = random.integer(1, 16);
    const int64_t steps = random.integer(1, block);
    std::vector<float> values;
    std::vector<bool> masked;
    for (int64_t i = 0; i < block; ++i) {
      values.push_back(static_cast<float>(random.integer(0, 4)) / 4.0F);  // many ties
      masked.push_back(random.uniform() < 0.6);
    }
    BlockPrediction prediction = with_confidence(values);
    prediction.entropy = values;
    for (const std::string strategy :
         {"sequential", "low_confidence_static", "low_confidence_dynamic", "entropy_bounded",
          "threshold", "factor", "prefix_ordered"}) {
      UnmaskingOptions options = options_of(strategy, block, steps);
      options.threshold = random.uniform();
      const auto chosen =
          select_transfers(options, random.integer(0, steps - 1), prediction, masked);
      const auto masks = std::count(masked.begin(), masked.end(), true);
      EXPECT_EQ(chosen.empty(), masks == 0) << options.strategy;
      EXPECT_LE(static_cast<int64_t>(chosen.size()), masks);
      EXPECT_TRUE(std::is_sorted(chosen.begin(), chosen.end()));
      EXPECT_EQ(std::adjacent_find(chosen.begin(), chosen.end()), chosen.end());
      for (const int64_t p : chosen) EXPECT_TRUE(masked[static_cast<size_t>(p)]);
    }
  }
}

}  // namespace
}  // namespace blockscope
