// Dense compared with reuse on a tiny random model: what must be equal is equal bit for bit, and
// what the runtime read is what the rule predicts from the dense run.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "probe/policies/exact_policy.h"
#include "probe/strategies/strategy_table.h"
#include "probe/verify/lockstep.h"
#include "probe/verify/verify_report.h"
#include "tests/probe/verify/verify_fixture.h"

namespace blockscope {
namespace {

using namespace testing;  // NOLINT: the helpers of this folder

HeadMatrix<bool> random_mask(uint64_t seed) {
  SeededRandom random(seed);
  HeadMatrix<bool> mask = every(true);
  for (auto& layer : mask) {
    for (size_t head = 0; head < layer.size(); ++head) layer[head] = random.integer(0, 3) > 0;
  }
  return mask;
}

TEST_F(VerifyRunTest, ReusingNothingIsDenseBitForBit) {
  for (const int64_t batch_size : {1, 2, 3}) {
    const VerifyResult result = verify({setting(100, every(false))}, batch_size);
    const SettingResult& own = result.settings.front();
    EXPECT_EQ(own.agreement.equal, own.agreement.positions);
    EXPECT_EQ(own.agreement.identical, 3);
    EXPECT_TRUE(own.divergences.empty());
    EXPECT_GT(own.fidelity.kl.count, 50);
    EXPECT_EQ(own.fidelity.kl.max, 0.0);
    EXPECT_EQ(own.fidelity.kl.mean, 0.0);
    EXPECT_EQ(own.fidelity.same_top1, own.fidelity.kl.count);
    EXPECT_EQ(sum_of(own.fidelity.first_order).absolute, 0.0);
    EXPECT_EQ(sum_of(own.fidelity.propagated).absolute, 0.0);
    EXPECT_GT(sum_of(own.fidelity.propagated).reference, 0.0);
    EXPECT_EQ(own.fidelity.reads.saving(), 0.0);
    EXPECT_EQ(own.fidelity.reads, own.predicted);
    EXPECT_EQ(own.run.reads, own.predicted);
  }
}

/// Such a block has no commit, so its replay must not have one either.
TEST_F(VerifyRunTest, AReplayEndsInsideTheBlockInWhichItsRunStopped) {
  const int64_t block_length = decode_.unmasking.block_length;
  decode_.unmasking = read_strategy("joint_threshold,threshold=0.99,editing_threshold=0.99");
  decode_.unmasking.block_length = block_length;
  decode_.unmasking.denoising_steps = block_length;
  prompts_.resize(1);
  const std::vector<int64_t> answer =
      decode_exact(*model_.model, decode_, {prompts_[0].request})[0].generated;
  int64_t inside = 0;
  for (const int64_t token : answer) {
    decode_.stop_ids = {token};
    const DecodeOutcome outcome = decode_exact(*model_.model, decode_, {prompts_[0].request})[0];
    const int64_t masks =
        std::count(outcome.generated.begin(), outcome.generated.end(), decode_.mask_token_id);
    if (outcome.reason != FinishReason::stop || masks == 0) continue;
    ++inside;
    const VerifyResult result = verify({setting(2, every(true))});
    const SettingResult& own = result.settings.front();
    EXPECT_EQ(own.fidelity.reads, own.predicted) << "stop token " << token;
    EXPECT_EQ(own.fidelity.reads.total_commits(), result.reference.run.reads.total_commits());
  }
  EXPECT_GT(inside, 0) << "choose another seed";
}

TEST_F(VerifyRunTest, UnderReplayTheKeysReadAreThosePredicted) {
  std::vector<PolicySetting> settings;
  for (int64_t tau = 1; tau <= 4; ++tau) {
    settings.push_back(setting(tau, every(true)));
    settings.push_back(setting(tau, random_mask(static_cast<uint64_t>(tau))));
  }
  for (size_t i = 0; i < 8; ++i) {
    settings.push_back(settings[i]);
    settings.back().reuse->count = ReuseCount::step;
    for (const ReuseRefresh refresh : {ReuseRefresh::rows, ReuseRefresh::near}) {
      settings.push_back(settings[i]);
      settings.back().reuse->refresh = refresh;
    }
  }
  for (const int64_t batch_size : {1, 3}) {
    const VerifyResult result = verify(settings, batch_size);
    for (const SettingResult& own : result.settings) {
      SCOPED_TRACE(::testing::Message()
                   << "tau " << own.setting.reuse->tau << ", "
                   << to_string(own.setting.reuse->count) << ", "
                   << to_string(own.setting.reuse->refresh) << ", batch " << batch_size);
      EXPECT_EQ(own.fidelity.reads, own.predicted);
      EXPECT_EQ(own.predicted->total_rows(), result.reference.run.reads.total_rows());
    }
    EXPECT_EQ(result.settings[0].predicted->saving(), 0.0);  // M >= 1 at every later step
    EXPECT_GT(result.settings[2].predicted->saving(), 0.1);
    EXPECT_GT(result.settings[4].predicted->saving(), result.settings[2].predicted->saving());
    EXPECT_GT(result.settings[6].predicted->saving(), result.settings[4].predicted->saving());
  }
}

TEST_F(VerifyRunTest, CountsByHand) {
  // 9 prompt tokens of 4: the first block (N = 8) holds 3 masks and takes 2 + 1; then N = 12, 16
  // and 20 with 2 + 1 + 1 each. Steps: 2, 3, 3, 3.
  prompts_.resize(1);
  const VerifyResult result = verify({setting(2, every(true)), setting(1, every(true))}, 1);
  const int64_t dense = 2 * 8 + 3 * (12 + 16 + 20);
  EXPECT_EQ(result.reference.run.denoising_steps, 11);
  EXPECT_EQ(result.reference.run.reads.rows, (std::vector<int64_t>(4, dense)));
  EXPECT_EQ(result.reference.run.reads.total_commits(), 4 * (8 + 12 + 16 + 20));
  // tau = 2 reuses at the third step alone (M = 1); the second one has M = 2.
  EXPECT_EQ(result.settings[0].fidelity.reads.rows_read,
            (std::vector<int64_t>(4, dense - (12 + 16 + 20))));
  EXPECT_EQ(result.settings[1].fidelity.reads.rows_read, (std::vector<int64_t>(4, dense)));
  EXPECT_EQ(result.settings[1].fidelity.kl.max, 0.0);
  // KL has one term per masked position and step: 3, 1 and three times 4, 2, 1.
  EXPECT_EQ(result.settings[0].fidelity.kl.count, 4 + 3 * 7);
}

TEST_F(VerifyRunTest, FirstOrderErrorStaysWhereAHeadReuses) {
  HeadMatrix<bool> last_layer = every(false);
  last_layer[1][3] = true;
  const SettingResult own = verify({setting(3, last_layer)}).settings.front();
  for (size_t head = 0; head < 8; ++head) {
    SCOPED_TRACE(head);
    // Nothing in the first layer can know of a reuse in the last one, and no later step either:
    // only tokens are carried over, and those are the dense run's.
    EXPECT_EQ(own.fidelity.first_order[head].absolute > 0.0, head == 7);
    EXPECT_EQ(own.fidelity.propagated[head].absolute > 0.0, head == 7);
    EXPECT_EQ(own.fidelity.first_order_approximated[head].elements > 0, head == 7);
  }
  EXPECT_EQ(own.fidelity.first_order[7].squared, own.fidelity.first_order_approximated[7].squared);
  EXPECT_LT(own.fidelity.first_order_approximated[7].elements,
            own.fidelity.first_order[7].elements);
  EXPECT_GT(own.fidelity.kl.mean, 0.0);
  EXPECT_EQ(own.fidelity.reads.saving(), 0.0);  // head 2 still needs the group's prefix
  EXPECT_GT(own.fidelity.reads.flops_avoided(10), 0.0);
}

TEST_F(VerifyRunTest, AReuseInTheFirstLayerReachesTheSecond) {
  HeadMatrix<bool> first_layer = every(false);
  first_layer[0] = std::vector<bool>(4, true);
  const SettingResult own = verify({setting(3, first_layer)}).settings.front();
  for (size_t head = 4; head < 8; ++head) {
    EXPECT_EQ(own.fidelity.first_order[head].absolute, 0.0);
    EXPECT_GT(own.fidelity.propagated[head].absolute, 0.0);
  }
  EXPECT_DOUBLE_EQ(own.fidelity.reads.saving(), own.predicted->saving());
}

TEST_F(VerifyRunTest, TheSameSettingTwiceIsMeasuredOnce) {
  const VerifyResult result = verify({setting(3, every(true)), setting(3, every(true))}, 2, 3);
  EXPECT_EQ(result.settings[0].run.times.attention, result.settings[1].run.times.attention);
  EXPECT_EQ(result.reference.run.times.attention.size(), 3U);
  for (const double seconds : result.reference.run.times.attention) EXPECT_GT(seconds, 0.0);
  for (size_t r = 0; r < 3; ++r) {
    EXPECT_LT(result.reference.run.times.attention[r], result.reference.run.times.total[r]);
  }
}

TEST_F(VerifyRunTest, PromptsWithoutAnswersHaveNoAccuracy) {
  const VerifyResult result = verify({setting(3, every(true))});
  EXPECT_EQ(result.settings.front().scores.count, 0);
  EXPECT_NE(verdict_text(result).find("accuracy n/a"), std::string::npos);
}

TEST_F(VerifyRunTest, AnswersAreScoredAgainstTheTextOfEachRun) {
  // Without a tokenizer the text is the ids; the dense run's own answer scores 1.
  int64_t next_pass = 0;
  const auto policy = make_exact_policy();
  const auto outcomes =
      decode_batch(*model_.model, *policy, decode_, {prompts_[0].request}, next_pass);
  prompts_[0].answers = {generated_text(outcomes[0].generated, decode_, nullptr)};
  prompts_[1].answers = {"nothing like it"};
  prompts_[0].metric = prompts_[1].metric = Metric::kExactMatch;
  const VerifyResult result = verify({setting(1, every(true))}, 1);
  EXPECT_EQ(result.reference.run.scores[0], 1.0);
  EXPECT_EQ(result.reference.run.scores[1], 0.0);
  EXPECT_TRUE(std::isnan(result.reference.run.scores[2]));
  EXPECT_EQ(result.settings.front().scores.count, 2);
  EXPECT_DOUBLE_EQ(result.settings.front().scores.mean_b, 0.5);
}

class ThrowingVisitor : public LockstepVisitor {
 public:
  explicit ThrowingVisitor(int64_t at) : left_(at) {}
  void on_attention(const AttentionView& /*view*/, const at::Tensor& /*exact_out*/) override {
    if (left_-- == 0) throw std::runtime_error("enough");
  }
  void on_logits(const PassContext& /*context*/, const std::vector<int64_t>& /*slots*/,
                 const at::Tensor& logits, const at::Tensor& exact_logits) override {
    EXPECT_EQ(logits.sizes(), exact_logits.sizes());
  }

 private:
  int64_t left_;
};

class LockstepTest : public VerifyRunTest {
 protected:
  std::vector<DecodeRequest> replays() {
    PassLog log;
    std::vector<DecodeRequest> requests;
    for (const RunPrompt& prompt : prompts_) requests.push_back(prompt.request);
    decode_exact(*model_.model, decode_, requests, &log);
    for (DecodeRequest& request : requests) {
      request.replayed = true;
      request.replay = log.steps_of(request.sequence, kTinyBlock);
    }
    return requests;
  }
};

TEST_F(LockstepTest, AnErrorOfTheVisitorComesOutAndEndsBothRuns) {
  const std::vector<DecodeRequest> requests = replays();
  for (const int64_t at : {0, 1, 7}) {
    ThrowingVisitor visitor(at);
    const auto policy = make_exact_policy();
    EXPECT_THROW(replay_in_lockstep(*model_.model, *model_.model, *policy, decode_, requests,
                                    visitor, [] { return false; }),
                 std::runtime_error);
  }
}

TEST_F(LockstepTest, AnInterruptionEndsBothRuns) {
  const std::vector<DecodeRequest> requests = replays();
  ThrowingVisitor visitor(1 << 20);
  const auto policy = make_exact_policy();
  int asked = 0;
  EXPECT_TRUE(replay_in_lockstep(*model_.model, *model_.model, *policy, decode_, requests, visitor,
                                 [&] { return ++asked > 4; }));
  EXPECT_LT(asked, 10);
}

}  // namespace
}  // namespace blockscope
