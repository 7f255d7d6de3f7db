// The newer rules where their authors' functions say nothing: edges, memory, and what a schedule
// that is due nothing means.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "decode_record/base/error.h"
#include "probe/caches/certainty_density.h"
#include "probe/strategies/klass.h"
#include "probe/strategies/quota.h"
#include "probe/strategies/strategy_table.h"
#include "probe/strategies/unmasking.h"
#include "probe/strategies/wino.h"
#include "tests/support/seed.h"

namespace blockscope {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

BlockPrediction rule_input(std::vector<float> confidence) {
  BlockPrediction prediction;
  prediction.token.assign(confidence.size(), 1);
  prediction.confidence = std::move(confidence);
  return prediction;
}

UnmaskingOptions rule_options(std::string strategy, int64_t block_length, int64_t steps) {
  UnmaskingOptions options;
  options.strategy = strategy;
  options.block_length = block_length;
  options.denoising_steps = steps;
  return options;
}

TEST(LinearQuota, TruncatesAndTakesEverythingAtTheLastStep) {
  // t = 1, 0.75025, 0.5005, ...: 8 masks are due 8 * 0.24975 = 1.998.
  EXPECT_EQ(linear_quota(8, 4, 0), 1);
  EXPECT_EQ(linear_quota(3, 4, 0), 0);
  EXPECT_EQ(linear_quota(7, 4, 3), 7);
  EXPECT_EQ(linear_quota(0, 4, 3), 0);
  EXPECT_EQ(linear_quota(5, 1, 0), 5);
}

TEST(LinearQuota, CountsMasksThatThePassDoesNotPredict) {
  // Dream with a cache, where the block's first token was predicted as [MASK].
  UnmaskingOptions options = rule_options("low_confidence_static", 8, 4);
  options.quota = Quota::kLinear;
  const BlockPrediction prediction = rule_input({.1F, .2F, .9F, .4F, .95F, .3F, .5F, .6F});
  const std::vector<bool> masked = {false, true, true, true, true, true, false, false};
  for (const int64_t unseen : {0, 1, 3}) {
    const auto due = static_cast<size_t>(linear_quota(5 + unseen, 4, 1));
    EXPECT_EQ(select_transfers(options, 1, prediction, masked, {}, 0, unseen).size(), due);
  }
  EXPECT_LT(linear_quota(5, 4, 1), linear_quota(8, 4, 1));
  // What is due and can't be decided is left.
  EXPECT_THAT(select_transfers(options, 3, prediction, masked, {}, 0, 3),
              ElementsAre(1, 2, 3, 4, 5));
}

TEST(LinearQuota, MayGiveAStepNothingUnlessAThresholdIsPassed) {
  const std::vector<bool> masked(4, true);
  const BlockPrediction prediction = rule_input({.2F, .9F, .4F, .95F});
  for (const std::string strategy : {"sequential", "low_confidence_static", "prefix_ordered"}) {
    UnmaskingOptions options = rule_options(strategy, 4, 4);
    options.quota = Quota::kLinear;
    EXPECT_THAT(select_transfers(options, 0, prediction, {true, false, true, true}), IsEmpty())
        << strategy;
    EXPECT_THAT(select_transfers(options, 3, prediction, masked), ElementsAre(0, 1, 2, 3))
        << strategy;
  }
  UnmaskingOptions options = rule_options("low_confidence_dynamic", 4, 4);
  options.quota = Quota::kLinear;
  EXPECT_THAT(select_transfers(options, 0, prediction, {true, true, false, true}),
              ElementsAre(1, 3));
  options.threshold = 0.99;
  EXPECT_THAT(select_transfers(options, 0, prediction, {true, true, false, true}), IsEmpty());
}

TEST(PrefixOrdered, EndsAtTheFirstHoleHoweverMuchIsDue) {
  UnmaskingOptions options = rule_options("prefix_ordered", 6, 2);  // 3 due
  const BlockPrediction prediction = rule_input({.9F, .9F, .9F, .9F, .9F, .9F});
  EXPECT_THAT(select_transfers(options, 0, prediction, {false, true, true, false, true, true}),
              ElementsAre(1, 2));
  options.threshold = 0.9;  // equal passes
  EXPECT_THAT(select_transfers(options, 0, prediction, std::vector<bool>(6, true)),
              ElementsAre(0, 1, 2, 3, 4, 5));
}

TEST(PrefixOrdered, StopsAtTheFirstThatFailsAndTakesWhatIsDue) {
  UnmaskingOptions options = rule_options("prefix_ordered", 5, 5);  // 1 due
  options.threshold = 0.5;
  const std::vector<bool> masked(5, true);
  EXPECT_THAT(select_transfers(options, 0, rule_input({.6F, .7F, .4F, .9F, .9F}), masked),
              ElementsAre(0, 1));
  EXPECT_THAT(select_transfers(options, 0, rule_input({.1F, .7F, .4F, .9F, .9F}), masked),
              ElementsAre(0));
}

at::Tensor distributions(const std::vector<std::vector<double>>& rows) {
  at::Tensor result = at::empty({static_cast<int64_t>(rows.size()), 2}, at::kDouble);
  for (size_t i = 0; i < rows.size(); ++i) {
    for (size_t j = 0; j < 2; ++j) {
      result.data_ptr<double>()[2 * i + j] = rows[i][j];
    }
  }
  return result;
}

/// Fast-dLLM `dream/model/generation_utils.py:_sample`, alg confidence_threshold, for masks that
/// are a multiple of the steps: a variable carries over what was not taken.
TEST(CarriedQuota, TakesWhatFastDllmsLoopTakes) {
  testing::SeededRandom random(5);
  int64_t most = 0;
  for (int64_t round = 0; round < 200; ++round) {
    UnmaskingOptions options;
    options.strategy = "threshold";
    options.quota = Quota::kCarry;
    options.block_length = 8;
    options.denoising_steps = std::vector<int64_t>{1, 2, 4, 8}[static_cast<size_t>(round % 4)];
    options.threshold = 0.5;
    std::vector<bool> masked(8, true);
    int64_t share = 8 / options.denoising_steps;
    int64_t carried = 0;
    int64_t chosen = 0;
    int64_t step = 0;
    for (; std::count(masked.begin(), masked.end(), true) > 0; ++step) {
      ASSERT_LT(step, most_steps(options));
      if (step >= options.denoising_steps) share = 0;
      BlockPrediction prediction;
      for (int64_t p = 0; p < 8; ++p) {
        prediction.confidence.push_back(static_cast<float>(std::abs(random.normal()) / 2.0));
      }
      std::vector<int64_t> order;
      for (int64_t p = 0; p < 8; ++p) {
        if (masked[static_cast<size_t>(p)]) order.push_back(p);
      }
      const auto sure = [&](int64_t p) { return prediction.confidence[static_cast<size_t>(p)]; };
      std::sort(order.begin(), order.end(),
                [&](int64_t a, int64_t b) { return sure(a) > sure(b); });
      order.resize(static_cast<size_t>(share + carried));
      carried =
          std::count_if(order.begin() + 1, order.end(), [&](int64_t p) { return sure(p) < 0.5F; });
      order.resize(order.size() - static_cast<size_t>(carried));
      std::sort(order.begin(), order.end());
      EXPECT_EQ(select_transfers(options, step, prediction, masked, {}, chosen), order)
          << "step " << step;
      for (const int64_t p : order) masked[static_cast<size_t>(p)] = false;
      chosen += std::ssize(order);
    }
    most = std::max(most, step - options.denoising_steps);
  }
  EXPECT_GT(most, 0) << "no block took more than its steps";
}

TEST(MostSteps, IsTheScheduleOrWhatMayFollowIt) {
  const auto text = [](const char* strategy) {
    UnmaskingOptions options = read_strategy(strategy);
    options.block_length = 16;
    options.denoising_steps = 8;
    return steps_text(options);
  };
  EXPECT_EQ(text("factor"), "at most 8 steps a block");
  EXPECT_EQ(text("threshold,quota=carry"), "8 scheduled steps a block, at most 24");
  EXPECT_EQ(text("joint_threshold,max_post_steps=2"), "8 scheduled steps a block, at most 11");
  // joint_threshold_indel counts its post steps anew after each mask of the block's beginning.
  EXPECT_EQ(text("joint_threshold_indel"), "8 scheduled steps a block, at most 1000");
}

TEST(KlassMemory, KnowsTheDivergenceFromTheStepBefore) {
  KlassMemory memory;
  memory.update({8, 9}, distributions({{.5, .5}, {1.0, 0.0}}));
  const auto kl = memory.update({8, 9}, distributions({{.25, .75}, {1.0, 0.0}}));
  EXPECT_NEAR(kl[0], .25 * std::log(.5) + .75 * std::log(1.5), 1e-9);
  EXPECT_NEAR(kl[1], 0.0, 1e-12);
  EXPECT_FALSE(memory.stable(8, .01, 1));
  EXPECT_TRUE(memory.stable(9, .01, 1));
  EXPECT_FALSE(memory.stable(9, .01, 2)) << "the first step is never stable";
}

TEST(KlassMemory, KnowsNothingOfPositionsThatWerePassed) {
  KlassMemory memory;
  const at::Tensor same = distributions({{.5, .5}});
  for (int i = 0; i < 3; ++i) memory.update({4}, same);
  EXPECT_TRUE(memory.stable(4, .01, 2));
  EXPECT_FALSE(memory.stable(5, 30.0, 1)) << "never predicted";
  memory.forget_before(4);
  EXPECT_TRUE(memory.stable(4, .01, 2));
  memory.forget_before(5);
  EXPECT_FALSE(memory.stable(4, 30.0, 1));
  EXPECT_NEAR(memory.update({4}, same)[0], std::log(.5) + 12 * std::log(10.0), 1e-6);
}

TEST(KlassMemory, KeepsWhatAPassDoesNotPredict) {
  KlassMemory memory;
  const at::Tensor half = distributions({{.5, .5}, {.5, .5}});
  memory.update({0, 1}, half);
  EXPECT_NEAR(memory.update({1}, distributions({{.5, .5}}))[0], 0.0, 1e-12);
  EXPECT_FALSE(memory.stable(0, 30.0, 2)) << "predicted once";
  EXPECT_TRUE(memory.stable(1, 30.0, 2)) << "predicted twice";
  EXPECT_NEAR(memory.update({0, 1}, half)[0], 0.0, 1e-12) << "from the step that predicted it last";
}

TEST(KlassChoice, NeedsBothAndFallsBackOnTheMostConfident) {
  const std::vector<bool> masked{true, true, true, false};
  const std::vector<double> confidence{.95, .99, .9, 1.0};
  EXPECT_THAT(select_klass(confidence, {true, false, true, true}, masked, .9, 2), ElementsAre(0));
  EXPECT_THAT(select_klass(confidence, {false, false, true, true}, masked, .9, 2),
              ElementsAre(0, 1));
  EXPECT_THAT(select_klass(confidence, {false, false, true, true}, masked, .9, 0), IsEmpty());
  // Two values that float32 can't distinguish.
  EXPECT_THAT(
      select_klass({1 - 2e-9, 1 - 1e-9, .5, 1}, {false, false, false, false}, masked, .9, 1),
      ElementsAre(1));
}

TEST(KlassChoice, TakesOneOfTheReadyPositions) {
  const std::vector<bool> masked{true, true, true, true, false};
  const std::vector<bool> stable{true, true, true, false, true};
  const std::vector<double> confidence{.95, .99, .99, 1.0, 1.0};
  const std::vector<double> kl{.002, .003, .002, .001, .0};
  const auto chosen = [&](KlassChoose choose, double threshold) {
    return select_klass(confidence, stable, masked, threshold, 2, choose, kl);
  };
  EXPECT_THAT(chosen(KlassChoose::kAll, .9), ElementsAre(0, 1, 2));
  EXPECT_THAT(chosen(KlassChoose::kMaxConf, .9), ElementsAre(1)) << "the lower of two";
  EXPECT_THAT(chosen(KlassChoose::kMinKl, .9), ElementsAre(0)) << "the lower of two";
  EXPECT_THAT(chosen(KlassChoose::kMinKl, .96), ElementsAre(2)) << "only among the ready ones";
  // Nothing is ready: the choice has no say.
  for (const KlassChoose choose : {KlassChoose::kAll, KlassChoose::kMaxConf, KlassChoose::kMinKl}) {
    EXPECT_THAT(chosen(choose, .999), ElementsAre(1, 3))
        << kKlassChooseWords[static_cast<size_t>(choose)];
  }
}

TEST(CertaintyDensity, IsOneBesideDecidedNeighboursAndFallsWithDistance) {
  std::vector<bool> decided(40, false);
  const auto density = certainty_density(decided, 2.0, {0, 40});
  for (size_t i = 1; i < density.size(); ++i) EXPECT_LE(density[i], density[i - 1]);
  EXPECT_NEAR(density[0], .5, .11);  // the prompt's side counts as decided
  EXPECT_NEAR(density[39], 0.0, 1e-6);
  decided.assign(40, true);
  for (const float value : certainty_density(decided, 2.0, {0, 40})) EXPECT_NEAR(value, 1.0, 1e-6);
  decided.front() = false;
  EXPECT_NEAR(certainty_density(decided, 1e-3, {0, 1})[0], 0.0, 1e-6);
}

TEST(CertaintyDensity, OfARangeIsThatOfTheAnswerAndOneOutsideIt) {
  std::vector<bool> decided(12, false);
  decided[3] = decided[7] = true;
  const auto whole = certainty_density(decided, 3.0, {0, 12});
  const auto part = certainty_density(decided, 3.0, {-2, 6});
  EXPECT_THAT(std::vector<float>(part.begin(), part.begin() + 2), ElementsAre(1.0F, 1.0F));
  EXPECT_EQ(std::vector<float>(part.begin() + 2, part.end()),
            std::vector<float>(whole.begin(), whole.begin() + 4));
}

TEST(CertaintyDensity, WeighsTheScoreBeforeRankingAndThreshold) {
  UnmaskingOptions options = rule_options("threshold", 3, 3);
  options.threshold = 0.5;
  const BlockPrediction prediction = rule_input({.9F, .8F, .6F});
  EXPECT_THAT(select_transfers(options, 0, prediction, {true, true, true}, {.1F, .9F, .9F}),
              ElementsAre(1, 2));
  options.strategy = "low_confidence_static";
  EXPECT_THAT(select_transfers(options, 0, prediction, {true, true, true}, {.1F, .5F, .9F}),
              ElementsAre(2));
}

TEST(PcSampler, PrefersRareTokensAndEarlyPositions) {
  UnmaskingOptions options = rule_options("pc_sampler", 3, 3);
  EXPECT_THROW(check_unmasking_options(options), UsageError);
  auto table = std::make_shared<TokenFrequencies>();
  table->share = {.5F, .001F};
  options.frequencies = table;
  EXPECT_NO_THROW(check_unmasking_options(options));
  BlockPrediction prediction = rule_input({.9F, .9F, .9F});
  prediction.token = {0, 1, 1};
  const std::vector<bool> masked(3, true);
  EXPECT_THAT(select_transfers(options, 0, prediction, masked), ElementsAre(1));
  options.pc_alpha = 0.1;  // both are cut off: the position decides
  EXPECT_THAT(select_transfers(options, 0, prediction, masked), ElementsAre(0));
  options.pc_alpha = 10;
  options.pc_lambda = 5;
  EXPECT_THAT(select_transfers(options, 0, prediction, masked), ElementsAre(0));
}

TEST(Wino, TakesTheBestWhereNoneIsSureAndRevokesNothingForASingleOne) {
  EXPECT_THAT(wino_wide_in({.1, .5, .5}, {true, true, true}, .6), ElementsAre(1));
  EXPECT_THAT(wino_narrow_out({.1, .1}, {true, true}, .9, 1, 30), IsEmpty());
  EXPECT_THAT(wino_narrow_out({.1, .95}, {true, true}, .9, 2, 30), ElementsAre(0));
  EXPECT_THAT(wino_narrow_out({.3, .1, .2}, {true, true, true}, .9, 2, 3), ElementsAre(1, 2));
  EXPECT_THAT(wino_narrow_out({.3, .1, .2}, {true, true, true}, .9, 2, 1), IsEmpty());
}

}  // namespace
}  // namespace blockscope
