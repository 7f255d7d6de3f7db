// Which keys each sparse policy reads, step by step, against sets recomputed from q and the keys in
// plain float64 loops.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "decode_record/error.h"
#include "probe/policies/mage_policy.h"
#include "probe/policies/oracle_policy.h"
#include "probe/policies/quest_policy.h"
#include "probe/policies/random_policy.h"
#include "probe/policies/recent_policy.h"
#include "probe/policies/sparsed_policy.h"
#include "tests/probe/policies/policy_pass.h"
#include "tests/support/reference.h"

namespace blockscope {
namespace {

using testing::PolicyPass;
using testing::Row;
using Set = std::vector<int64_t>;  // by falling score
using Make = std::function<std::unique_ptr<AttentionPolicy>(const SelectionOptions&)>;

SelectionOptions with_k(int64_t k) {
  SelectionOptions options;
  options.num_layers = 2;
  options.k = k;
  return options;
}

std::vector<std::pair<std::string, Make>> all_policies() {
  return {{"mage", [](const SelectionOptions& o) { return make_mage_policy(o); }},
          {"mage, not overlapped",
           [](SelectionOptions o) {
             o.overlap = false;
             return make_mage_policy(o);
           }},
          {"mage+flashblock",
           [](SelectionOptions o) {
             o.residual = true;
             return make_mage_policy(o);
           }},
          {"sparsed",
           [](const SelectionOptions& o) { return make_sparsed_policy(o, SparseDScope::run); }},
          {"sparsed per block",
           [](const SelectionOptions& o) { return make_sparsed_policy(o, SparseDScope::block); }},
          {"quest", [](const SelectionOptions& o) { return make_quest_policy(o, 4); }},
          {"oracle", [](const SelectionOptions& o) { return make_oracle_policy(o); }},
          {"random", [](const SelectionOptions& o) { return make_random_policy(o, 7); }},
          {"recent", [](const SelectionOptions& o) { return make_recent_policy(o); }}};
}

Set members(const at::Tensor& row) {
  Set set;
  for (int64_t i = 0; i < row.size(0); ++i) {
    if (row[i].item<int64_t>() >= 0) set.push_back(row[i].item<int64_t>());
  }
  return set;
}

Set set_of(const AttentionParts& parts, int64_t s, int64_t kv_head) {
  return parts.selected.defined() ? members(parts.selected[s][kv_head]) : Set{};
}

Row row_of(const at::Tensor& vector) {
  Row row;
  for (int64_t d = 0; d < vector.size(0); ++d) row.push_back(vector[d].item<double>());
  return row;
}

std::vector<Row> prefix_keys(const PolicyPass& pass, int64_t s, int64_t kv_head) {
  std::vector<Row> keys;
  for (int64_t n = 0; n < pass.length[s].item<int64_t>(); ++n) {
    keys.push_back(row_of(pass.key[s][kv_head][n]));
  }
  return keys;
}

/// MAGE eq. 3.
Set reference_set(const PolicyPass& pass, int64_t s, int64_t kv_head, size_t k) {
  std::vector<Row> queries;
  for (int64_t g = 0; g < 2; ++g) {
    for (int64_t t = 0; t < PolicyPass::kBlock; ++t) {
      queries.push_back(row_of(pass.q[s][kv_head * 2 + g][t]));
    }
  }
  return testing::top_k_reference(
      testing::mean_probability_reference(queries, prefix_keys(pass, s, kv_head), 0.4), k);
}

/// Quest with MAGE's mean over the block: pages by falling bound, keys rising in each.
Set reference_pages(const PolicyPass& pass, int64_t s, int64_t kv_head, size_t pages, size_t page) {
  const std::vector<Row> keys = prefix_keys(pass, s, kv_head);
  std::vector<double> bounds;
  for (size_t begin = 0; begin < keys.size(); begin += page) {
    const size_t end = std::min(begin + page, keys.size());
    double mean = 0.0;
    for (int64_t g = 0; g < 2; ++g) {
      for (int64_t t = 0; t < PolicyPass::kBlock; ++t) {
        const Row q = row_of(pass.q[s][kv_head * 2 + g][t]);
        for (size_t d = 0; d < q.size(); ++d) {
          double most = keys[begin][d];
          double least = most;
          for (size_t n = begin; n < end; ++n) {
            most = std::max(most, keys[n][d]);
            least = std::min(least, keys[n][d]);
          }
          mean += std::max(q[d] * most, q[d] * least);
        }
      }
    }
    bounds.push_back(mean);
  }
  Set set;
  for (const int64_t chosen : testing::top_k_reference(bounds, pages)) {
    const size_t begin = static_cast<size_t>(chosen) * page;
    for (size_t n = begin; n < std::min(begin + page, keys.size()); ++n) {
      set.push_back(static_cast<int64_t>(n));
    }
  }
  return set;
}

bool same(const AttentionParts& a, const AttentionParts& b) {
  return at::equal(a.out, b.out) && at::equal(a.external, b.external) &&
         at::equal(a.lse_external, b.lse_external) && at::equal(a.internal, b.internal);
}

TEST(SelectionPolicies, WithAllKeysEveryPolicyIsExactBitForBit) {
  at::manual_seed(1);
  for (const auto& [name, make] : all_policies()) {
    for (const int64_t k : {40, 1000}) {
      SCOPED_TRACE(name);
      const auto policy = make(with_k(k));
      PolicyPass pass({40, 0, 7});
      for (int64_t step = 1; step <= 8; ++step) {
        policy->begin_pass(pass.context);
        for (const int64_t layer : {0, 1}) {
          EXPECT_TRUE(same(policy->attend(pass.input(layer), pass.external()), pass.exact()));
        }
        policy->end_pass();
        pass = pass.next();
      }
    }
  }
}

TEST(SelectionPolicies, CommitPassesAndExactLayersReadEverything) {
  at::manual_seed(2);
  for (const auto& [name, make] : all_policies()) {
    SCOPED_TRACE(name);
    SelectionOptions options = with_k(3);
    options.exact_layers = 1;
    const auto policy = make(options);
    PolicyPass pass({30, 12});
    for (int64_t step = 1; step <= 8; ++step) {
      const AttentionParts parts = pass.run(*policy, 0);
      EXPECT_TRUE(same(parts, pass.exact()));
      EXPECT_FALSE(parts.approximate());
      pass.run(*policy, 1);
      pass = pass.next();
    }
    for (SequencePass& sequence : pass.context.sequences) {
      sequence.kind = PassKind::commit;
      sequence.step = sequence.run_step = 0;
    }
    EXPECT_TRUE(same(pass.run(*policy, 1), pass.exact()));
  }
}

TEST(MagePolicy, ReadsTheSetsOfTheFirstStepAtEveryLaterOneAndRenewsThemPerBlock) {
  at::manual_seed(3);
  const auto policy = make_mage_policy(with_k(6));
  PolicyPass block({30, 4, 0});
  for (int64_t b = 0; b < 3; ++b) {
    const AttentionParts first = block.run(*policy);
    EXPECT_TRUE(same(first, block.exact()));
    EXPECT_FALSE(first.approximate());
    EXPECT_TRUE(at::equal(first.rows_scored, block.length));
    PolicyPass step = block;
    for (int64_t t = 2; t <= 4; ++t) {
      step = step.next();
      const AttentionParts parts = step.run(*policy);
      for (int64_t s = 0; s < 3; ++s) {
        for (int64_t h = 0; h < 2; ++h) {
          EXPECT_EQ(set_of(parts, s, h), reference_set(block, s, h, 6)) << "step " << t;
          EXPECT_EQ(parts.keys_read[s][h].item<int64_t>(),
                    std::min<int64_t>(6, block.length[s].item<int64_t>()));
        }
      }
      EXPECT_FALSE(parts.rows_scored.defined());
      EXPECT_FALSE(parts.residual.defined());
    }
    const int64_t run_step = step.context.sequences[0].run_step;
    block = PolicyPass({33, 7, 3});
    for (size_t s = 0; s < 3; ++s) block.at_step(s, 1, run_step + 1);
  }
}

TEST(MagePolicy, TheResidualIsTheFirstStepsAttentionOverTheOtherKeys) {
  at::manual_seed(4);
  SelectionOptions options = with_k(5);
  options.residual = true;
  const auto policy = make_mage_policy(options);
  EXPECT_EQ(policy->name(), "mage+flashblock");
  EXPECT_TRUE(policy->keeps_residual());
  const PolicyPass first({25, 3});
  EXPECT_TRUE(same(first.run(*policy), first.exact()));
  // The same queries once more: selected, residual and internal parts are the whole attention.
  PolicyPass again = first;
  again.at_step(0, 2, 2).at_step(1, 2, 2);
  const AttentionParts merged = again.run(*policy);
  EXPECT_TRUE(at::allclose(merged.out, first.exact().out, 1e-5, 1e-6));
  for (int64_t h = 0; h < 4; ++h) {
    const Set set = reference_set(first, 0, h / 2, 5);
    const std::set<int64_t> chosen(set.begin(), set.end());
    std::vector<Row> keys;
    std::vector<Row> values;
    for (int64_t n = 0; n < 25; ++n) {
      if (chosen.count(n) > 0) continue;
      keys.push_back(row_of(first.key[0][h / 2][n]));
      values.push_back(row_of(first.value[0][h / 2][n]));
    }
    for (int64_t t = 0; t < PolicyPass::kBlock; ++t) {
      const testing::RowAttention rest =
          testing::attention_reference(row_of(first.q[0][h][t]), keys, values, 0.4);
      EXPECT_NEAR(merged.lse_residual[0][h][t].item<double>(), rest.lse, 1e-5);
      for (int64_t d = 0; d < PolicyPass::kDim; ++d) {
        EXPECT_NEAR(merged.residual[0][h][t][d].item<double>(), rest.output[static_cast<size_t>(d)],
                    1e-5);
      }
    }
  }
  // Not refreshed within the block.
  const AttentionParts later = again.next().run(*policy);
  EXPECT_TRUE(at::equal(later.residual, merged.residual));
  // A prefix that is selected whole leaves no residual.
  EXPECT_TRUE(later.lse_residual[1].isinf().all().item<bool>());
}

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
      EXPECT_TRUE(same(parts, pass.exact()));
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

TEST(SelectionPolicies, SequencesAtDifferentStepsAndOnesThatLeaveKeepTheirOwnSets) {
  at::manual_seed(12);
  for (const bool overlap : {false, true}) {
    SelectionOptions options = with_k(4);
    options.overlap = overlap;
    const auto policy = make_mage_policy(options);
    const PolicyPass first({20, 30, 25});
    first.run(*policy);
    PolicyPass mixed = first.next();
    mixed.at_step(1, 1, 5);  // sequence 1 is at the first step of its next block
    const AttentionParts parts = mixed.run(*policy);
    EXPECT_EQ(set_of(parts, 0, 0), reference_set(first, 0, 0, 4));
    EXPECT_EQ(set_of(parts, 1, 0), Set{});
    EXPECT_EQ(parts.keys_read[1][0].item<int64_t>(), 30);
    EXPECT_TRUE(at::equal(parts.out[1], mixed.exact().out[1]));
    EXPECT_EQ(set_of(parts, 2, 1), reference_set(first, 2, 1, 4));
    // Sequence 0 leaves: the last slot takes its place.
    policy->remove(0);
    PolicyPass rest({25, 30});
    rest.context.sequences[0].sequence = 2;
    rest.at_step(0, 3, 3).at_step(1, 2, 6);
    const AttentionParts left = rest.run(*policy);
    EXPECT_EQ(set_of(left, 0, 1), reference_set(first, 2, 1, 4));
    EXPECT_EQ(set_of(left, 1, 0), reference_set(mixed, 1, 0, 4));
  }
}

TEST(SelectionOptions, ADensityIsRoundedUpToWholeKeysAndAWholeNumberIsItself) {
  const auto keys = [](double density, int64_t length) {
    SelectionOptions options;
    options.density = density;
    return options.set_size(length);
  };
  EXPECT_EQ(keys(0.28, 25), 7);  // the product is a little more than 7 in binary
  EXPECT_EQ(keys(0.3, 31), 10);
  EXPECT_EQ(keys(1.0, 31), 31);
  EXPECT_EQ(keys(1e-9, 31), 1);
  EXPECT_EQ(keys(0.5, 0), 0);
  for (int64_t tenths = 1; tenths <= 10; ++tenths) {
    for (int64_t length = 10; length <= 5000; length += 10) {
      EXPECT_EQ(keys(0.1 * static_cast<double>(tenths), length), tenths * length / 10);
    }
  }
}

TEST(SelectionPolicies, SenselessOptionsThrow) {
  const auto refused = [](int64_t k, double density, int64_t exact_layers) {
    SelectionOptions options = with_k(k);
    options.density = density;
    options.exact_layers = exact_layers;
    EXPECT_THROW(make_mage_policy(options), UsageError);
  };
  refused(0, 0.0, 0);
  refused(-1, 0.0, 0);
  refused(4, 0.5, 0);
  refused(0, 1.5, 0);
  refused(4, 0.0, 3);
  refused(4, 0.0, -1);
  EXPECT_THROW(make_quest_policy(with_k(4), 0), UsageError);
}

}  // namespace
}  // namespace blockscope
