// Which keys the policies that choose by themselves read, step by step: the oracle, Quest, SparseD
// and the floors.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <vector>

#include "decode_record/base/error.h"
#include "probe/policies/oracle_policy.h"
#include "probe/policies/quest_policy.h"
#include "probe/policies/random_policy.h"
#include "probe/policies/recent_policy.h"
#include "probe/policies/sparsed_policy.h"
#include "tests/probe/policies/selection_reference.h"

namespace blockscope {
namespace {

using namespace testing;  // NOLINT: the helpers of this folder

TEST(OraclePolicy, ReadsTheSetOfEachStepItself) {
  at::manual_seed(5);
  const auto policy = make_oracle_policy(with_k(6));
  PolicyPass pass({30, 9});
  for (int64_t t = 1; t <= 3; ++t) {
    const AttentionParts parts = pass.run(*policy);
    for (int64_t s = 0; s < 2; ++s) {
      for (int64_t h = 0; h < 2; ++h) {
        EXPECT_EQ(set_of(parts, s, h), reference_set(pass, s, h, 6));
      }
    }
    pass = pass.next();
  }
}

TEST(QuestPolicy, ReadsTheBestPagesOfEachStepWhileThePrefixGrows) {
  at::manual_seed(6);
  for (const int64_t page : {1, 4, 16, 100}) {
    const auto policy = make_quest_policy(with_k(10), page);
    PolicyPass pass({70, 18, 0});
    const at::Tensor keys = at::randn({3, 2, 100, PolicyPass::kDim});
    for (int64_t grown : {0, 3, 6, 30}) {
      pass.length = at::tensor(std::vector<int64_t>{70 + grown, 18 + grown, grown}, at::kLong);
      pass.key = keys.narrow(2, 0, 70 + grown);
      pass.value = at::randn_like(pass.key);
      const AttentionParts parts = pass.run(*policy);
      const size_t pages = static_cast<size_t>((10 + page - 1) / page);
      for (int64_t s = 0; s < 3; ++s) {
        const size_t length = static_cast<size_t>(pass.length[s].item<int64_t>());
        const size_t wanted = static_cast<size_t>(
            (std::min<int64_t>(10, static_cast<int64_t>(length)) + page - 1) / page);
        for (int64_t h = 0; h < 2; ++h) {
          EXPECT_EQ(set_of(parts, s, h),
                    reference_pages(pass, s, h, std::min(pages, wanted), static_cast<size_t>(page)))
              << "page " << page << ", N " << length;
        }
      }
      pass = pass.next();
    }
  }
}

TEST(QuestPolicy, OfEqualPagesTheFirstOnesAreRead) {
  const auto policy = make_quest_policy(with_k(8), 4);
  PolicyPass pass({20});
  pass.key = at::zeros_like(pass.key);
  EXPECT_EQ(set_of(pass.run(*policy), 0, 0), (Set{0, 1, 2, 3, 4, 5, 6, 7}));
}

TEST(QuestPolicy, ABatchThatStartsAnewForgetsTheBoundsOfTheLastOne) {
  at::manual_seed(7);
  const auto policy = make_quest_policy(with_k(8), 4);
  for (int64_t batch = 0; batch < 3; ++batch) {
    const PolicyPass pass({40});
    EXPECT_EQ(set_of(pass.run(*policy), 0, 1), reference_pages(pass, 0, 1, 2, 4));
  }
}

TEST(SparseDPolicy, OneSetForTheRunFromTheStepAfterAFifthOfIt) {
  at::manual_seed(8);
  EXPECT_EQ(sparsed_capture_step(128), 27);  // int(128 * 0.2) + 1 = 26, counted from 0
  EXPECT_EQ(sparsed_capture_step(20), 6);
  const auto policy = make_sparsed_policy(with_k(5), SparseDScope::run);
  PolicyPass pass({30});
  PolicyPass captured({30});
  for (int64_t run_step = 1; run_step <= 12; ++run_step) {
    pass.at_step(0, (run_step - 1) % 4 + 1, run_step);
    if (run_step == 9) {  // a block was committed
      const at::Tensor more = at::randn({1, 2, 3, PolicyPass::kDim});
      pass.key = at::cat({pass.key, more}, 2);
      pass.value = at::cat({pass.value, more}, 2);
      pass.length = pass.length + 3;
    }
    const AttentionParts parts = pass.run(*policy);
    if (run_step == 6) captured = pass;
    if (run_step <= 6) {
      EXPECT_TRUE(same_parts(parts, pass.exact()));
    } else {
      for (int64_t h = 0; h < 2; ++h)
        EXPECT_EQ(set_of(parts, 0, h), reference_set(captured, 0, h, 5));
    }
    pass = pass.next();
  }
}

TEST(SparseDPolicy, PerBlockByDensityIsTheFirstStepsShareOfThePrefix) {
  at::manual_seed(9);
  SelectionOptions options;
  options.num_layers = 1;
  options.density = 0.3;
  options.residual = true;
  const auto policy = make_sparsed_policy(options, SparseDScope::block);
  const PolicyPass first({31, 2});
  first.run(*policy);
  const AttentionParts parts = first.next().run(*policy);
  EXPECT_EQ(set_of(parts, 0, 0), reference_set(first, 0, 0, 10));  // ceil(9.3)
  EXPECT_EQ(set_of(parts, 1, 0), reference_set(first, 1, 0, 1));
  EXPECT_TRUE(parts.residual.defined());
  EXPECT_THROW(make_sparsed_policy(options, SparseDScope::run), UsageError);
}

TEST(RandomPolicy, KeepsADrawPerBlockThatTheBatchDoesNotChange) {
  at::manual_seed(10);
  const auto policy = make_random_policy(with_k(6), 7);
  const PolicyPass pass({40, 40});
  const AttentionParts first = pass.run(*policy);
  const AttentionParts second = pass.next().run(*policy);
  EXPECT_TRUE(at::equal(first.selected, second.selected));
  EXPECT_FALSE(at::equal(first.selected[0], first.selected[1]));
  EXPECT_FALSE(at::equal(first.selected[0][0], first.selected[0][1]));
  EXPECT_FALSE(at::equal(pass.run(*policy, 1).selected, first.selected));
  PolicyPass alone({40});
  alone.context.sequences[0].prompt_hash = 101;
  EXPECT_TRUE(
      at::equal(alone.run(*make_random_policy(with_k(6), 7)).selected[0], first.selected[1]));
  EXPECT_FALSE(
      at::equal(alone.run(*make_random_policy(with_k(6), 8)).selected[0], first.selected[1]));
  // Every key is drawn about equally often: 6 of 40 in each of 600 draws, 5 standard deviations.
  std::vector<int64_t> drawn(40);
  for (int64_t block = 0; block < 300; ++block) {
    alone.context.sequences[0].block = block;
    const AttentionParts parts = alone.run(*policy);
    for (int64_t h = 0; h < 2; ++h) {
      const Set set = set_of(parts, 0, h);
      EXPECT_EQ(std::set<int64_t>(set.begin(), set.end()).size(), 6u);
      for (const int64_t n : set) ++drawn[static_cast<size_t>(n)];
    }
  }
  for (const int64_t count : drawn) EXPECT_NEAR(static_cast<double>(count), 90.0, 45.0);
}

TEST(RecentPolicy, ReadsTheLastKeys) {
  at::manual_seed(11);
  const auto policy = make_recent_policy(with_k(3));
  const AttentionParts parts = PolicyPass({9, 2}).run(*policy);
  EXPECT_EQ(set_of(parts, 0, 1), (Set{8, 7, 6}));
  EXPECT_EQ(set_of(parts, 1, 0), (Set{1, 0}));
}

}  // namespace
}  // namespace blockscope
