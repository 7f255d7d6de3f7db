// The reuse rule of FlashBlock, seen through the policy alone: by either count, never at a block's
// first step or at a commit, per head and per layer, and across sequences that leave the batch.
#include "probe/policies/attention_policy.h"
#include "probe/policies/exact_policy.h"
#include "probe/policies/flashblock_policy.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <tuple>
#include <vector>

#include "tests/probe/policies/policy_pass.h"

namespace blockscope {
namespace {

constexpr int64_t kLayers = 2;
constexpr int64_t kHeads = testing::PolicyPass::kHeads;

/// A pass over `sequences` sequences with `prefix` external keys each.
struct Pass : testing::PolicyPass {
  Pass(int64_t sequences, int64_t prefix)
      : PolicyPass(std::vector<int64_t>(static_cast<size_t>(sequences), prefix)) {}
  /// `counted`: M and the tokens since the last read.
  Pass& at_step(size_t slot, int64_t step, int64_t counted) {
    context.sequences[slot].kind = PassKind::denoise;
    context.sequences[slot].step = step;
    context.sequences[slot].changed = context.sequences[slot].since_read = counted;
    return *this;
  }
};

bool same(const at::Tensor& a, const at::Tensor& b) { return at::allclose(a, b, 1e-5, 1e-6); }

/// What each [sequence][head] was given: 'r' this policy's earlier pair, 'x' the exact one.
bool reused(const AttentionParts& parts, int64_t slot, int64_t head) {
  return parts.reused.defined() && parts.reused[slot][head].item<bool>();
}

void expect_reuse_below_tau(ReuseCount count) {
  at::manual_seed(1);
  for (const int64_t tau : {1, 2, 3}) {
    for (int64_t counted = 0; counted <= 4; ++counted) {
      const auto policy =
          make_flashblock_policy({kLayers, kHeads, {static_cast<double>(tau), count}, {}});
      Pass first(1, 7);
      first.at_step(0, 1, 0);
      policy->begin_pass(first.context);
      const AttentionParts before = policy->attend(first.input(0), first.external());
      EXPECT_FALSE(reused(before, 0, 0));
      EXPECT_EQ(policy->rows_read(0, 5), 5);
      Pass second(1, 7);
      second.at_step(0, 2, counted);
      // The other count would decide the opposite.
      const int64_t opposite = counted < tau ? tau : 0;
      (count == ReuseCount::step ? second.context.sequences[0].since_read
                                 : second.context.sequences[0].changed) = opposite;
      policy->begin_pass(second.context);
      const AttentionParts after = policy->attend(second.input(0), second.external());
      for (int64_t head = 0; head < kHeads; ++head) {
        EXPECT_EQ(reused(after, 0, head), counted < tau) << "tau " << tau << ", M " << counted;
      }
      EXPECT_EQ(policy->rows_read(0, 5), counted < tau ? 0 : 5);
      EXPECT_TRUE(same(after.external, counted < tau ? before.external : second.exact(0).external));
      EXPECT_TRUE(same(after.internal, second.exact(0).internal));
    }
  }
}

TEST(FlashBlockPolicy, ReusesExactlyWhenFewerThanTauTokensWereDecidedSinceTheLastRead) {
  expect_reuse_below_tau(ReuseCount::since_read);
}

TEST(FlashBlockPolicy, ReusesExactlyWhenTheStepChangedFewerThanTauTokens) {
  expect_reuse_below_tau(ReuseCount::step);
}

TEST(FlashBlockPolicy, ReusesOnlyWhenTheStepBeforeWasSureOfATokenThatItLeft) {
  for (const auto& [left, counted, reuses] :
       std::vector<std::tuple<float, int64_t, bool>>{{0.75F, 1, true},  // just enough
                                                     {0.74F, 1, false},
                                                     {0.9F, 2, false},  // tau is reached
                                                     {0.0F, 0, false}}) {
    FlashBlockOptions options{kLayers, kHeads, {2}, {}};
    options.sure = 0.75;
    const auto policy = make_flashblock_policy(options);
    Pass first(1, 7);
    first.at_step(0, 1, 0).run(*policy);
    Pass second(1, 7);
    second.at_step(0, 2, counted).context.sequences[0].sure_left = left;
    second.run(*policy);
    EXPECT_EQ(policy->rows_read(0, 5), reuses ? 0 : 5) << left << ", " << counted;
  }
}

TEST(FlashBlockPolicy, NeverReusesAtTheFirstStepOrTheCommit) {
  at::manual_seed(2);
  const auto policy = make_flashblock_policy({kLayers, kHeads, {100}, {}});
  for (const PassKind kind : {PassKind::denoise, PassKind::commit, PassKind::denoise}) {
    Pass pass(1, 6);
    pass.at_step(0, kind == PassKind::denoise ? 1 : 0, 0);
    pass.context.sequences[0].kind = kind;
    policy->begin_pass(pass.context);
    const AttentionParts parts = policy->attend(pass.input(0), pass.external());
    EXPECT_FALSE(reused(parts, 0, 0));
    EXPECT_TRUE(same(parts.out, pass.exact(0).out));
  }
}

TEST(FlashBlockPolicy, LeavesTheCachedPairWhenItReusesAndReplacesItWhenItRecomputes) {
  at::manual_seed(3);
  const auto policy = make_flashblock_policy({kLayers, kHeads, {2}, {}});
  std::vector<at::Tensor> used;
  std::vector<at::Tensor> exact;
  // M per step: 1 is first; 2 reuses; 3 recomputes; 4 and 5 reuse the pair of step 3.
  const std::vector<int64_t> changed{0, 1, 2, 1, 0};
  for (size_t step = 0; step < changed.size(); ++step) {
    Pass pass(1, 6);
    pass.at_step(0, static_cast<int64_t>(step) + 1, changed[step]);
    policy->begin_pass(pass.context);
    used.push_back(policy->attend(pass.input(1), pass.external()).external.clone());
    exact.push_back(pass.exact(1).external);
  }
  const std::vector<size_t> source{0, 0, 2, 2, 2};
  for (size_t step = 0; step < source.size(); ++step) {
    EXPECT_TRUE(same(used[step], exact[source[step]])) << "step " << step + 1;
  }
}

TEST(FlashBlockPolicy, AHeadTakesThePairOfItsOwnLastReadAsTheMasksOfTheStepsSay) {
  at::manual_seed(5);
  // Head 0 reuses always, head 1 from step 4 on, head 2 at steps 2 and 3, head 3 never.
  const HeadMatrix<bool> early(kLayers, {true, false, true, false});
  const HeadMatrix<bool> late(kLayers, {true, true, false, false});
  const auto policy = make_flashblock_policy({kLayers, kHeads, {100}, {{{1, 4}}, {early, late}}});
  std::vector<at::Tensor> exact;
  std::vector<at::Tensor> used;
  std::vector<bool> repeats;
  for (int64_t step = 1; step <= 5; ++step) {
    Pass pass(1, 6);
    pass.at_step(0, step, step == 1 ? 0 : 1);
    policy->begin_pass(pass.context);
    repeats.push_back(policy->repeats().has_value());
    for (int64_t layer = 0; layer < kLayers; ++layer) {
      const AttentionParts parts = policy->attend(pass.input(layer), pass.external());
      if (layer == 1) used.push_back(parts.external);
    }
    exact.push_back(pass.exact(1).external);
  }
  const std::vector<std::vector<size_t>> source{
      {0, 0, 0, 0}, {0, 1, 0, 1}, {0, 2, 0, 2}, {0, 2, 3, 3}, {0, 2, 4, 4}};
  for (size_t step = 0; step < source.size(); ++step) {
    for (size_t head = 0; head < 4; ++head) {
      EXPECT_TRUE(same(used[step][0][static_cast<int64_t>(head)],
                       exact[source[step][head]][0][static_cast<int64_t>(head)]))
          << "step " << step + 1 << ", head " << head;
    }
  }
  // Steps 2 and 3 keep the new pair of head 1; from step 4 on nothing is kept any more.
  EXPECT_EQ(repeats, (std::vector<bool>{false, false, false, true, true}));
}

TEST(FlashBlockPolicy, PassesOfTwoRangesOfStepsAreNotOneGraph) {
  const HeadMatrix<bool> some(kLayers, {true, true, false, false});
  const HeadMatrix<bool> fewer(kLayers, {true, false, false, false});
  const auto policy = make_flashblock_policy({kLayers, kHeads, {100}, {{{1, 3}}, {some, fewer}}});
  std::vector<std::optional<std::vector<int64_t>>> keys;
  for (int64_t step = 1; step <= 4; ++step) {
    Pass pass(1, 6);
    pass.at_step(0, step, step == 1 ? 0 : 1);
    policy->begin_pass(pass.context);
    keys.push_back(policy->repeats());
  }
  EXPECT_FALSE(keys[0].has_value());
  EXPECT_TRUE(keys[1].has_value() && keys[2].has_value());
  EXPECT_NE(keys[1], keys[2]);
  EXPECT_EQ(keys[2], keys[3]);
}

TEST(FlashBlockPolicy, FollowsTheMaskPerLayerAndHead) {
  at::manual_seed(4);
  const std::vector<std::vector<bool>> mask{{true, false, true, true},
                                            {false, false, false, false}};
  const auto policy = make_flashblock_policy({kLayers, kHeads, {5}, {{}, {mask}}});
  Pass first(1, 6);
  first.at_step(0, 1, 0);
  policy->begin_pass(first.context);
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    policy->attend(first.input(layer), first.external());
  }
  Pass second(1, 6);
  second.at_step(0, 2, 1);
  policy->begin_pass(second.context);
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    const AttentionParts parts = policy->attend(second.input(layer), second.external());
    const AttentionParts exact = second.exact(layer);
    for (int64_t head = 0; head < kHeads; ++head) {
      const bool may = mask[static_cast<size_t>(layer)][static_cast<size_t>(head)];
      EXPECT_EQ(reused(parts, 0, head), may);
      const at::Tensor expected = may ? first.exact(layer).external : exact.external;
      EXPECT_TRUE(same(parts.external[0][head], expected[0][head]));
    }
    // KV head 0 is still read for query head 1; no query head reads KV head 1 in layer 0.
    if (layer == 0) {
      EXPECT_EQ(parts.keys_read[0][0].item<int64_t>(), 6);
      EXPECT_EQ(parts.keys_read[0][1].item<int64_t>(), 0);
    } else {
      EXPECT_TRUE(same(parts.out, exact.out));
    }
  }
}

TEST(FlashBlockPolicy, DecidesForEachSequenceOfTheBatch) {
  at::manual_seed(5);
  const auto policy = make_flashblock_policy({kLayers, kHeads, {2}, {}});
  Pass first(3, 6);
  first.at_step(0, 1, 0).at_step(1, 1, 0).at_step(2, 1, 0);
  policy->begin_pass(first.context);
  policy->attend(first.input(0), first.external());
  Pass second(3, 6);
  second.at_step(0, 2, 1).at_step(1, 2, 2).at_step(2, 1, 0);
  policy->begin_pass(second.context);
  const AttentionParts parts = policy->attend(second.input(0), second.external());
  EXPECT_TRUE(same(parts.external[0], first.exact(0).external[0]));
  EXPECT_TRUE(same(parts.external[1], second.exact(0).external[1]));
  EXPECT_TRUE(same(parts.external[2], second.exact(0).external[2]));
}

TEST(FlashBlockPolicy, KeepsTheOtherSequencesPairsWhenOneIsRemoved) {
  for (int64_t gone = 0; gone < 3; ++gone) {
    SCOPED_TRACE(gone);
    at::manual_seed(6);
    const auto policy = make_flashblock_policy({kLayers, kHeads, {2}, {}});
    Pass first(3, 6);
    first.at_step(0, 1, 0).at_step(1, 1, 0).at_step(2, 1, 0);
    policy->begin_pass(first.context);
    const at::Tensor before = policy->attend(first.input(0), first.external()).external.clone();
    policy->remove(gone);
    std::vector<int64_t> slots{0, 1, 2};
    slots[static_cast<size_t>(gone)] = slots.back();
    slots.pop_back();
    Pass second(2, 6);
    second.at_step(0, 2, 0).at_step(1, 2, 0);
    policy->begin_pass(second.context);
    const AttentionParts parts = policy->attend(second.input(0), second.external());
    for (int64_t slot = 0; slot < 2; ++slot) {
      EXPECT_TRUE(same(parts.external[slot], before[slots[static_cast<size_t>(slot)]]));
    }
  }
}

TEST(FlashBlockPolicy, GivesTheInternalPartWhenThereIsNoPrefix) {
  at::manual_seed(7);
  const auto policy = make_flashblock_policy({kLayers, kHeads, {2}, {}});
  for (const int64_t step : {1, 2}) {
    Pass pass(1, 0);
    pass.at_step(0, step, 1);
    policy->begin_pass(pass.context);
    const AttentionParts parts = policy->attend(pass.input(0), pass.external());
    EXPECT_TRUE(at::equal(parts.out, parts.internal));
    EXPECT_TRUE(at::isneginf(parts.lse_external).all().item<bool>());
    EXPECT_EQ(parts.external.abs().max().item<float>(), 0.0F);
  }
}

}  // namespace
}  // namespace blockscope
