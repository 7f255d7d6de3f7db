// Policies with sets, and pairs of policies, on a tiny random model: what must be equal is equal
// bit for bit, and what was read and what choosing read is what one counts by hand.
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "probe/verify/verify_report.h"
#include "tests/probe/verify/verify_fixture.h"

namespace blockscope {
namespace {

using namespace testing;  // NOLINT: the helpers of this folder

using VerifyPolicies = VerifyRunTest;

/// Not sparsed for the run: its set has no keys of later blocks.
constexpr const char* kSets[] = {"mage",
                                 "mage+flashblock",
                                 "sparsed,per_block",
                                 "sparsed+flashblock,per_block",
                                 "quest,page=4",
                                 "oracle",
                                 "random",
                                 "recent"};

std::string with_k(const std::string& policy, int64_t k) {
  return policy + ",k=" + std::to_string(k);
}

TEST_F(VerifyPolicies, SetsOfTheWholePrefixAreExactBitForBit) {
  for (const char* policy : kSets) {
    for (const int64_t batch_size : {1, 3}) {
      SCOPED_TRACE(policy);
      const VerifyResult result = verify({setting(with_k(policy, 1000))}, batch_size);
      const SettingResult& own = result.settings.front();
      EXPECT_EQ(own.agreement.identical, 3);
      EXPECT_TRUE(own.divergences.empty());
      EXPECT_GT(own.fidelity.kl.count, 50);
      EXPECT_EQ(own.fidelity.kl.max, 0.0);
      EXPECT_EQ(sum_of(own.fidelity.first_order).absolute, 0.0);
      EXPECT_EQ(sum_of(own.fidelity.propagated).absolute, 0.0);
      EXPECT_GT(sum_of(own.fidelity.propagated).reference, 0.0);
      EXPECT_EQ(own.fidelity.reads.saving(), 0.0);
      EXPECT_EQ(own.run.reads.saving(), 0.0);
      EXPECT_EQ(own.fidelity.reads.flops_avoided(10), 0.0);
    }
  }
}

/// 9 prompt tokens in blocks of 4: N = 8 with 2 steps, then 12, 16 and 20 with 3 steps each, for
/// each of 2 layers and 2 KV heads.
class CountsByHand : public VerifyRunTest {
 protected:
  CountsByHand() { prompts_.resize(1); }
  ExternalReads reads_of(const std::string& policy) {
    const SettingResult own = verify({setting(policy)}, 1).settings.front();
    EXPECT_EQ(own.predicted, std::optional(own.fidelity.reads)) << policy;
    EXPECT_EQ(own.fidelity.reads.rows, (std::vector<int64_t>(4, kDense))) << policy;
    return own.fidelity.reads;
  }
  static std::vector<int64_t> each(int64_t rows) { return std::vector<int64_t>(4, rows); }

  static constexpr int64_t kDense = 2 * 8 + 3 * (12 + 16 + 20);
  static constexpr int64_t kFirst = 8 + 12 + 16 + 20;  // the first steps
  static constexpr int64_t kLater = 1 + 2 + 2 + 2;     // steps after a first one
};

TEST_F(CountsByHand, SetsOfABlocksFirstStep) {
  for (const char* policy : {"mage,k=5", "sparsed,k=5,per_block"}) {
    const ExternalReads reads = reads_of(policy);
    EXPECT_EQ(reads.rows_read, each(kFirst + kLater * 5)) << policy;
    EXPECT_EQ(reads.total_choice(), 4 * kFirst) << policy;
  }
  // A residual: keys and values of the others once more.
  const ExternalReads residual = reads_of("mage+flashblock,k=5");
  EXPECT_EQ(residual.rows_read, each(kFirst + kLater * 5));
  EXPECT_EQ(residual.total_choice(), 4 * (kFirst + 2 * (kFirst - 4 * 5)));
  const double dense = static_cast<double>(kDense);
  EXPECT_DOUBLE_EQ(residual.saving(), 1.0 - static_cast<double>(kFirst + kLater * 5) / dense);
  // A row is half a key with its value.
  EXPECT_DOUBLE_EQ(residual.saving_with_choice(),
                   residual.saving() - 0.5 * static_cast<double>(3 * kFirst - 40) / dense);
}

TEST_F(CountsByHand, SetsOfEveryStepAndOfTheRun) {
  const int64_t steps = 2 + 3 + 3 + 3;
  for (const char* policy : {"recent,k=5", "random,k=5"}) {
    EXPECT_EQ(reads_of(policy).rows_read, each(steps * 5)) << policy;
    EXPECT_EQ(reads_of(policy).total_choice(), 0) << policy;
  }
  EXPECT_EQ(reads_of("oracle,k=5").rows_read, each(steps * 5));
  EXPECT_EQ(reads_of("oracle,k=5").total_choice(), 4 * kDense);
  // Two pages of 4 hold 5 keys; a least and a largest row a page.
  const ExternalReads quest = reads_of("quest,k=5,page=4");
  EXPECT_EQ(quest.rows_read, each(steps * 8));
  EXPECT_EQ(quest.total_choice(), 4 * 2 * kDense / 4);
  EXPECT_EQ(reads_of("quest,k=8,page=4").rows_read, each(steps * 8)) << "8 keys are two pages too";
  // 4 blocks of 3 steps: int(0.2 * 12) + 2 = 4 steps read everything (8, 8, 12, 12), the last of
  // them gives the set; then 12, 16 and 20 go on with it.
  const ExternalReads run = reads_of("sparsed,k=5");
  EXPECT_EQ(run.rows_read, each(8 + 8 + 12 + 12 + 7 * 5));
  EXPECT_EQ(run.total_choice(), 4 * 12);
}

TEST_F(CountsByHand, ExactLayersAndDensitiesAndShortPages) {
  const ExternalReads reads = reads_of("mage,density=0.3,exact_layers=1");
  const int64_t later = 3 + 2 * (4 + 5 + 6);  // 0.3 of 8, 12, 16 and 20, rounded up
  EXPECT_EQ(reads.rows_read,
            (std::vector<int64_t>{kDense, kDense, kFirst + later, kFirst + later}));
  EXPECT_EQ(reads.total_choice(), 2 * kFirst);
  // FLOPs belong to query heads: all four of the second layer do without.
  EXPECT_DOUBLE_EQ(reads.flops_avoided(10),
                   4.0 * 4 * 10 * 4 * static_cast<double>(kDense - kFirst - later));
  // Pages of 3 leave a short one, which the rule alone can't place.
  const SettingResult own = verify({setting("quest,k=5,page=3")}, 1).settings.front();
  EXPECT_FALSE(own.predicted.has_value());
  EXPECT_GT(own.fidelity.reads.saving(), 0.2);
}

TEST_F(VerifyPolicies, TheErrorStaysInLayersAndStepsWithSets) {
  const SettingResult own = verify({setting("mage,k=3,exact_layers=1")}).settings.front();
  for (size_t head = 0; head < 8; ++head) {
    SCOPED_TRACE(head);
    EXPECT_EQ(own.fidelity.first_order[head].absolute > 0.0, head >= 4);
    EXPECT_EQ(own.fidelity.first_order_approximated[head].elements > 0, head >= 4);
    EXPECT_EQ(own.fidelity.first_order[head].squared,
              own.fidelity.first_order_approximated[head].squared);
  }
  EXPECT_LT(own.fidelity.first_order_approximated[4].elements,
            own.fidelity.first_order[4].elements);  // not the first steps
  EXPECT_EQ(own.fidelity.kl_by_step.front().max, 0.0);
  EXPECT_GT(own.fidelity.kl.mean, 0.0);
}

TEST_F(VerifyPolicies, AResidualIsPartOfTheOutputThatIsMeasured) {
  // A first step's attention over the rest is nearer to this step's than nothing is.
  const VerifyResult result = verify({setting("mage,k=3"), setting("mage+flashblock,k=3")});
  EXPECT_LT(sum_of(result.settings[1].fidelity.first_order).relative_l2(),
            sum_of(result.settings[0].fidelity.first_order).relative_l2());
}

TEST_F(VerifyPolicies, APolicyBesideItselfDiffersInNothing) {
  for (const char* policy : {"mage+flashblock,k=3", "quest,k=4,page=4", "random,k=2"}) {
    SCOPED_TRACE(policy);
    const VerifyResult result = verify({setting(policy)}, 2, 1, read_policy(policy));
    const SettingResult& own = result.settings.front();
    EXPECT_TRUE(result.pair());
    EXPECT_EQ(own.agreement.identical, 3);
    EXPECT_TRUE(own.divergences.empty());
    EXPECT_EQ(own.run.reads, result.reference.run.reads);
    EXPECT_EQ(own.fidelity.reads, result.reference.fidelity.reads);
    EXPECT_EQ(own.fidelity.kl.mean, result.reference.fidelity.kl.mean);
    EXPECT_GT(own.fidelity.kl.mean, 0.0);  // which is from exact, not from the reference
    // Two runs, not one run twice.
    EXPECT_NE(own.run.times.attention, result.reference.run.times.attention);
  }
}

TEST_F(VerifyPolicies, APairIsReplayedOnTheReferencesRun) {
  const PolicyOptions recent = read_policy("recent,k=1");
  const VerifyResult result = verify({setting(3, every(true))}, 2, 1, recent);
  const VerifyResult alone = verify({setting(3, every(true))}, 2, 1);
  // The reference's own passes are what the rule predicts from, and what its meter saw.
  EXPECT_EQ(result.reference.fidelity.reads, result.reference.run.reads);
  EXPECT_EQ(result.settings[0].fidelity.reads, *result.settings[0].predicted);
  EXPECT_NE(result.settings[0].fidelity.kl.mean, alone.settings[0].fidelity.kl.mean);
  EXPECT_TRUE(alone.reference.fidelity.first_order.empty());
  EXPECT_FALSE(alone.reference.predicted.has_value());
}

TEST_F(VerifyPolicies, ReadsThatDependOnProbabilitiesAreCountedAndNotPredicted) {
  const PolicySetting never = setting("flashblock,tau=16,sure=1");  // no token is that sure
  const VerifyResult result = verify({setting("flashblock,tau=16"), never, never});
  EXPECT_EQ(never.label, "flashblock,tau=16,sure=1");
  EXPECT_GT(result.settings[0].fidelity.reads.saving(), 0.0);
  EXPECT_TRUE(result.settings[0].predicted.has_value());
  EXPECT_EQ(result.settings[1].fidelity.reads.saving(), 0.0);
  EXPECT_FALSE(result.settings[1].predicted.has_value());
  EXPECT_NE(sweep_text(result).find("n/a"), std::string::npos);
}

TEST_F(VerifyPolicies, FlashBlockWithoutAFileReusesEveryHead) {
  const PolicySetting all = setting("flashblock,tau=3");
  ASSERT_TRUE(all.reuse.has_value());
  EXPECT_EQ(all.reuse->reuse, (ReuseMasks{{}, {every(true)}}));
  EXPECT_EQ(all.label, "flashblock,tau=3");
  EXPECT_EQ(setting("flashblock").label, "flashblock,tau=2");
}

}  // namespace
}  // namespace blockscope
