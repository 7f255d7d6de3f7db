// Tokens and their scores from logits on the emulated cuda:0: those of the CPU, after one wait.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "probe/decode/sampling.h"
#include "tests/support/emulated_cuda.h"
#include "tests/support/seed.h"

namespace blockscope {
namespace {

constexpr int64_t kSequences = 3;
constexpr int64_t kSampledBlock = 8;

at::Tensor random_logits(uint64_t seed, int64_t vocab, double spread) {
  testing::SeededRandom random(seed);
  at::Tensor logits = at::empty({kSequences, kSampledBlock, vocab}, at::kFloat);
  float* data = logits.data_ptr<float>();
  for (int64_t i = 0; i < logits.numel(); ++i) {
    data[i] = static_cast<float>(spread * random.normal());
  }
  return logits;
}

std::vector<StreamId> streams() {
  std::vector<StreamId> result;
  for (uint64_t s = 0; s < kSequences; ++s) result.push_back({77 + s, 3, 2});
  return result;
}

void expect_close(const std::vector<float>& got, const std::vector<float>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-6F * (1 + want[i]));
}

struct Case {
  const char* name;
  SamplingOptions sampling;
  PredictionNeeds needs;
  int64_t waits = 1;
};

TEST(DeviceSampling, GivesTheTokensOfTheCpuAfterOneWait) {
  const std::vector<Case> cases{
      {"greedy", {}, {}},
      {"greedy, entropy", {}, {.entropy = true}},
      {"greedy, margin", {}, {.rank_by = RankBy::kMargin}},
      {"greedy, negative entropy", {}, {.rank_by = RankBy::kNegativeEntropy}},
      {"temperature", {.temperature = 0.8, .seed = 5}, {}},
      {"almost no temperature", {.temperature = 1e-8, .seed = 5}, {}},
      {"top-k", {.temperature = 1.3, .top_k = 5, .seed = 6}, {.entropy = true}},
      {"top-p", {.temperature = 1.0, .top_p = 0.7, .seed = 7}, {.rank_by = RankBy::kMargin}},
      {"both", {.temperature = 2.0, .top_k = 20, .top_p = 0.9, .seed = 8}, {}},
      {"distributions", {.temperature = 0.5, .seed = 9}, {.distributions = true}},
  };
  for (const Case& each : cases) {
    for (const int64_t vocab : {3, 257, 4096}) {
      SCOPED_TRACE(std::string(each.name) + ", vocabulary " + std::to_string(vocab));
      const at::Tensor logits = random_logits(static_cast<uint64_t>(vocab), vocab, 3.0);
      const at::Tensor there = logits.to(at::kCUDA);
      const auto want = predict_tokens(logits, each.sampling, streams(), each.needs);
      emulated_cuda::reset_counters();
      const auto got = predict_tokens(there, each.sampling, streams(), each.needs);
      EXPECT_EQ(emulated_cuda::counters().host_waits(), each.waits);
      ASSERT_EQ(got.size(), want.size());
      for (size_t s = 0; s < want.size(); ++s) {
        EXPECT_EQ(got[s].token, want[s].token);
        EXPECT_EQ(got[s].top1, want[s].top1);
        expect_close(got[s].confidence, want[s].confidence);
        expect_close(got[s].top1_confidence, want[s].top1_confidence);
        expect_close(got[s].entropy, want[s].entropy);
        ASSERT_EQ(got[s].score.size(), want[s].score.size());
        for (size_t i = 0; i < want[s].score.size(); ++i) {
          EXPECT_NEAR(got[s].score[i], want[s].score[i], 1e-5);
        }
      }
    }
  }
}

/// Rows of one and of two possible tokens.
TEST(DeviceSampling, NeverDrawsATokenWithoutProbability) {
  at::Tensor logits =
      at::full({kSequences, kSampledBlock, 65}, -std::numeric_limits<float>::infinity());
  logits.select(-1, 17).fill_(1.0F);
  logits.select(0, 1).select(-1, 40).fill_(1.0F);
  const at::Tensor there = logits.to(at::kCUDA);
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const SamplingOptions sampling{.temperature = 0.9, .seed = seed};
    const auto want = predict_tokens(logits, sampling, streams());
    const auto got = predict_tokens(there, sampling, streams());
    for (size_t s = 0; s < want.size(); ++s) {
      EXPECT_EQ(got[s].token, want[s].token);
      for (const int64_t token : got[s].token) EXPECT_TRUE(token == 17 || (s == 1 && token == 40));
    }
  }
}

}  // namespace
}  // namespace blockscope
