// What positions are ranked by: the score of the predictions, against float64 sums over the
// vocabulary, and what every ranking strategy takes for it.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "decode_record/base/error.h"
#include "probe/decode/sampling.h"
#include "probe/strategies/unmasking.h"
#include "tests/support/seed.h"

namespace blockscope {
namespace {

using ::testing::ElementsAre;
using ::testing::FloatNear;
using ::testing::HasSubstr;
using ::testing::Pointwise;
using testing::SeededRandom;

constexpr int64_t kBlock = 6;
constexpr int64_t kVocab = 31;

/// Softmax in float64, descending.
std::vector<double> probabilities(const float* logits) {
  std::vector<double> p(logits, logits + kVocab);
  const double largest = *std::max_element(p.begin(), p.end());
  double sum = 0.0;
  for (double& value : p) sum += value = std::exp(value - largest);
  for (double& value : p) value /= sum;
  std::sort(p.rbegin(), p.rend());
  return p;
}

TEST(RankingScore, IsTheMarginOrTheNegativeEntropyOfTheWholeVocabulary) {
  SeededRandom random(3);
  at::Tensor logits = at::empty({2, kBlock, kVocab}, at::kFloat);
  for (int64_t i = 0; i < logits.numel(); ++i) {
    logits.data_ptr<float>()[i] = static_cast<float>(3.0 * random.normal());
  }
  const std::vector<StreamId> streams(2);
  const auto plain = predict_tokens(logits, {}, streams);
  const auto margin = predict_tokens(logits, {}, streams, {.rank_by = RankBy::kMargin});
  const auto entropy = predict_tokens(logits, {}, streams, {.rank_by = RankBy::kNegativeEntropy});
  for (size_t s = 0; s < 2; ++s) {
    EXPECT_TRUE(plain[s].score.empty());
    EXPECT_THAT(margin[s].confidence, Pointwise(FloatNear(1e-6F), plain[s].confidence));
    EXPECT_THAT(entropy[s].confidence, Pointwise(FloatNear(1e-6F), plain[s].confidence));
    EXPECT_EQ(margin[s].token, plain[s].token);
    for (size_t i = 0; i < kBlock; ++i) {
      const auto p = probabilities(logits.const_data_ptr<float>() + (s * kBlock + i) * kVocab);
      double sum = 0.0;
      for (const double value : p) sum += value * std::log(value + 1e-10);
      EXPECT_NEAR(margin[s].score[i], p[0] - p[1], 1e-6);
      EXPECT_NEAR(entropy[s].score[i], sum, 1e-5);
      EXPECT_NEAR(plain[s].confidence[i], p[0], 1e-6);
    }
  }
}

TEST(RankingScore, OfASampledTokenIsStillThatOfTheDistribution) {
  at::Tensor logits = at::zeros({1, kBlock, kVocab});
  logits.select(-1, 4).fill_(2.0);
  logits.select(-1, 9).fill_(1.0);
  SamplingOptions options;
  options.temperature = 1.0;
  options.seed = 8;
  const auto sampled = predict_tokens(logits, options, {{1, 2, 3}}, {.rank_by = RankBy::kMargin});
  const double sum = std::exp(2.0) + std::exp(1.0) + kVocab - 2;
  for (const double score : sampled[0].score) {
    EXPECT_NEAR(score, (std::exp(2.0) - std::exp(1.0)) / sum, 1e-6);
  }
  EXPECT_THAT(sampled[0].token, ::testing::Contains(::testing::Ne(4)));
}

TEST(RankingScore, OfARowThatIsSureIsFiniteAndTheLargest) {
  at::Tensor logits = at::zeros({1, 2, kVocab});
  logits[0][1][5] = 1e4;  // all other probabilities are exactly 0
  const auto entropy =
      predict_tokens(logits, {}, std::vector<StreamId>(1), {.rank_by = RankBy::kNegativeEntropy});
  EXPECT_NEAR(entropy[0].score[0], -std::log(kVocab), 1e-5);
  EXPECT_NEAR(entropy[0].score[1], 0.0, 1e-6);
}

/// Confidence and score disagree about every pair of positions.
BlockPrediction contrary() {
  BlockPrediction prediction;
  prediction.token.assign(4, 7);
  prediction.top1 = prediction.token;
  prediction.confidence = {.9F, .8F, .7F, .6F};
  prediction.top1_confidence = prediction.confidence;
  prediction.score = {.1, .2, .3, .4};
  return prediction;
}

TEST(RankingStrategies, SelectAndCompareByTheScoreNotTheConfidence) {
  const std::vector<bool> masked(4, true);
  UnmaskingOptions options;
  options.block_length = 4;
  options.denoising_steps = 4;
  const auto chosen = [&](std::string strategy) {
    options.strategy = strategy;
    return select_transfers(options, 0, contrary(), masked);
  };
  EXPECT_THAT(chosen("low_confidence_static"), ElementsAre(3));
  options.threshold = 0.25;
  EXPECT_THAT(chosen("low_confidence_dynamic"), ElementsAre(2, 3));
  EXPECT_THAT(chosen("threshold"), ElementsAre(2, 3));
  options.threshold = 0.5;
  EXPECT_THAT(chosen("threshold"), ElementsAre(3));
  // Ranks from 0: .4, .3, .2, .1; rank 1 needs 1 - 2.4/3 = .2, rank 2 1 - 2.4/4 = .4.
  options.factor = 2.4;
  EXPECT_THAT(chosen("factor"), ElementsAre(2, 3));
}

TEST(RankingStrategies, TakeThresholdsInNatsForTheNegativeEntropy) {
  UnmaskingOptions options;
  options.block_length = 4;
  options.denoising_steps = 4;
  options.strategy = "threshold";
  options.rank_by = RankBy::kNegativeEntropy;
  try {
    check_unmasking_options(options);  // the default is a probability: no position would pass
    FAIL() << "accepted";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("at most 0, got 0.85"));
  }
  options.threshold = -0.5;
  EXPECT_NO_THROW(check_unmasking_options(options));
  BlockPrediction prediction = contrary();
  prediction.score = {-2.0, -.5, -.6, -.1};
  EXPECT_THAT(select_transfers(options, 0, prediction, std::vector<bool>(4, true)),
              ElementsAre(1, 3));
  options.rank_by = RankBy::kMargin;
  EXPECT_THROW(check_unmasking_options(options), UsageError);
}

}  // namespace
}  // namespace blockscope
