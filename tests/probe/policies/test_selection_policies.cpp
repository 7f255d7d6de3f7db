// What holds for every sparse policy, and MAGE and its residual: which keys are read at which step.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "decode_record/base/error.h"
#include "probe/policies/mage_policy.h"
#include "probe/policies/oracle_policy.h"
#include "probe/policies/quest_policy.h"
#include "probe/policies/random_policy.h"
#include "probe/policies/recent_policy.h"
#include "probe/policies/sparsed_policy.h"
#include "tests/probe/policies/selection_reference.h"

namespace blockscope {
namespace {

using namespace testing;  // NOLINT: the helpers of this folder

using Make = std::function<std::unique_ptr<AttentionPolicy>(const SelectionOptions&)>;

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
          EXPECT_TRUE(same_parts(policy->attend(pass.input(layer), pass.external()), pass.exact()));
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
      EXPECT_TRUE(same_parts(parts, pass.exact()));
      EXPECT_FALSE(parts.approximate());
      pass.run(*policy, 1);
      pass = pass.next();
    }
    for (SequencePass& sequence : pass.context.sequences) {
      sequence.kind = PassKind::commit;
      sequence.step = sequence.run_step = 0;
    }
    EXPECT_TRUE(same_parts(pass.run(*policy, 1), pass.exact()));
  }
}

TEST(MagePolicy, ReadsTheSetsOfTheFirstStepAtEveryLaterOneAndRenewsThemPerBlock) {
  at::manual_seed(3);
  const auto policy = make_mage_policy(with_k(6));
  PolicyPass block({30, 4, 0});
  for (int64_t b = 0; b < 3; ++b) {
    const AttentionParts first = block.run(*policy);
    EXPECT_TRUE(same_parts(first, block.exact()));
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
  const AttentionParts captured = first.run(*policy);
  EXPECT_TRUE(same_parts(captured, first.exact()));
  // All keys to choose from; then keys and values of the 20 that were not chosen, and of none.
  EXPECT_TRUE(at::equal(captured.rows_scored, at::tensor({25 + 2 * 20, 3}, at::kLong)));
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
      const ReferenceRow rest = attention_reference(row_of(first.q[0][h][t]), keys, values, 0.4);
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

TEST(SelectionPolicies, TimeIsCountedWhereKeysAreChosen) {
  at::manual_seed(13);
  SelectionOptions serial = with_k(4);
  serial.overlap = false;
  const auto beside = make_mage_policy(with_k(4));
  const auto inside = make_mage_policy(serial);
  const auto quest = make_quest_policy(with_k(4), 4);
  PolicyPass pass({200});
  pass.run(*beside);
  pass.run(*inside);
  pass.run(*quest);
  const ChoosingTime first_beside = beside->choosing_time();
  const ChoosingTime first_inside = inside->choosing_time();
  const ChoosingTime first_quest = quest->choosing_time();
  EXPECT_EQ(first_beside.inline_ns, 0);
  EXPECT_GT(first_beside.beside_ns, 0);
  EXPECT_GT(first_inside.inline_ns, 0);
  EXPECT_EQ(first_inside.beside_ns, 0);
  EXPECT_GT(first_quest.inline_ns, 0);
  pass = pass.next();
  pass.run(*beside);
  pass.run(*inside);
  pass.run(*quest);
  EXPECT_EQ(beside->choosing_time().beside_ns, first_beside.beside_ns);
  EXPECT_EQ(inside->choosing_time().inline_ns, first_inside.inline_ns);
  EXPECT_GT(quest->choosing_time().inline_ns, first_quest.inline_ns);
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
