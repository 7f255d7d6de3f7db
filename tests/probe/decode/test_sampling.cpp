// Predictions from hand-made logits: greedy ties, confidence before top-k and top-p, entropy, and
// random streams that depend on nothing but their names.
#include "probe/decode/sampling.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>
#include <vector>

#include "decode_record/base/error.h"
#include "tests/support/seed.h"

namespace blockscope {
namespace {

using testing::SeededRandom;

at::Tensor random_logits(uint64_t seed, int64_t sequences, int64_t block, int64_t vocab) {
  SeededRandom random(seed);
  at::Tensor logits = at::empty({sequences, block, vocab}, at::kFloat);
  float* data = logits.data_ptr<float>();
  for (int64_t i = 0; i < logits.numel(); ++i) data[i] = static_cast<float>(2.0 * random.normal());
  return logits;
}

std::vector<StreamId> streams_of(int64_t sequences) {
  std::vector<StreamId> streams;
  for (int64_t s = 0; s < sequences; ++s) streams.push_back({77 + static_cast<uint64_t>(s), 3, 2});
  return streams;
}

/// Softmax in float64, from the definition.
std::vector<double> softmax_reference(const at::Tensor& logits, double temperature) {
  std::vector<double> p;
  double sum = 0.0;
  const double largest = logits.max().item<double>();
  for (int64_t i = 0; i < logits.size(0); ++i) {
    p.push_back(std::exp((logits[i].item<double>() - largest) / temperature));
    sum += p.back();
  }
  for (double& value : p) value /= sum;
  return p;
}

TEST(Sampling, GreedyIsArgmaxWithItsPlainSoftmaxProbabilityAndTheEntropy) {
  const at::Tensor logits = random_logits(1, 2, 3, 11);
  const auto predictions = predict_tokens(logits, {}, streams_of(2), {.entropy = true});
  ASSERT_EQ(predictions.size(), 2U);
  for (int64_t s = 0; s < 2; ++s) {
    for (int64_t i = 0; i < 3; ++i) {
      const BlockPrediction& got = predictions[static_cast<size_t>(s)];
      const size_t at = static_cast<size_t>(i);
      const auto p = softmax_reference(logits[s][i], 1.0);
      size_t best = 0;
      double entropy = 0.0;
      for (size_t v = 0; v < p.size(); ++v) {
        if (p[v] > p[best]) best = v;
        entropy -= p[v] * std::log(p[v]);
      }
      EXPECT_EQ(got.token[at], static_cast<int64_t>(best));
      EXPECT_EQ(got.top1[at], got.token[at]);
      EXPECT_NEAR(got.confidence[at], p[best], 1e-6);
      EXPECT_EQ(got.top1_confidence[at], got.confidence[at]);
      EXPECT_NEAR(got.entropy[at], entropy, 1e-5);
    }
  }
}

TEST(Sampling, GreedyTiesGoToTheLowerId) {
  at::Tensor logits = at::zeros({1, 1, 70});
  EXPECT_EQ(predict_tokens(logits, {}, streams_of(1))[0].token[0], 0);
  logits[0][0][33] = 4.0;
  logits[0][0][34] = 4.0;
  logits[0][0][65] = 4.0;
  EXPECT_EQ(predict_tokens(logits, {}, streams_of(1))[0].token[0], 33);
}

TEST(Sampling, EntropyOfACertainPredictionIsFinite) {
  at::Tensor logits = at::full({1, 1, 4}, -std::numeric_limits<float>::infinity());
  logits[0][0][2] = 1.0;
  const auto prediction = predict_tokens(logits, {}, streams_of(1), {.entropy = true})[0];
  EXPECT_EQ(prediction.confidence[0], 1.0F);
  EXPECT_NEAR(prediction.entropy[0], 0.0, 1e-9);
}

TEST(Sampling, ConfidenceIsTheProbabilityBeforeTopKAndTopPAndAfterTemperature) {
  SamplingOptions options;
  options.temperature = 0.7;
  options.top_k = 1;
  const at::Tensor logits = random_logits(2, 1, 4, 9);
  const auto prediction = predict_tokens(logits, options, streams_of(1))[0];
  for (int64_t i = 0; i < 4; ++i) {
    const auto p = softmax_reference(logits[0][i], 0.7);
    const size_t token = static_cast<size_t>(prediction.token[static_cast<size_t>(i)]);
    EXPECT_NEAR(prediction.confidence[static_cast<size_t>(i)], p[token], 1e-6);
    EXPECT_LT(prediction.confidence[static_cast<size_t>(i)], 1.0F);
  }
}

TEST(Sampling, TopKOneTakesTheGreedyTokens) {
  const at::Tensor logits = random_logits(3, 3, 8, 31);
  SamplingOptions options;
  options.temperature = 1.3;
  options.top_k = 1;
  const auto sampled = predict_tokens(logits, options, streams_of(3));
  const auto greedy = predict_tokens(logits, {}, streams_of(3));
  for (size_t s = 0; s < 3; ++s) EXPECT_EQ(sampled[s].token, greedy[s].token);
}

TEST(Sampling, TopPKeepsTheBestTokenHoweverSmallPIs) {
  const at::Tensor logits = random_logits(4, 2, 8, 31);
  SamplingOptions options;
  options.temperature = 1.0;
  options.top_p = 1e-9;
  const auto sampled = predict_tokens(logits, options, streams_of(2));
  const auto greedy = predict_tokens(logits, {}, streams_of(2));
  for (size_t s = 0; s < 2; ++s) EXPECT_EQ(sampled[s].token, greedy[s].token);
}

TEST(Sampling, NeverDrawsOutsideTopKOrTopP) {
  // Probabilities 0.5, 0.25, 0.125, 0.125 at ids 2, 0, 1, 3.
  const at::Tensor row = at::log(at::tensor({0.25F, 0.125F, 0.5F, 0.125F}));
  const at::Tensor logits = row.expand({1, 64, 4}).contiguous();
  const auto drawn = [&](const SamplingOptions& options) {
    std::set<int64_t> tokens;
    for (uint64_t prompt = 0; prompt < 30; ++prompt) {
      const auto prediction = predict_tokens(logits, options, {{prompt, 0, 1}})[0];
      tokens.insert(prediction.token.begin(), prediction.token.end());
    }
    return tokens;
  };
  SamplingOptions options;
  options.temperature = 1.0;
  EXPECT_EQ(drawn(options), (std::set<int64_t>{0, 1, 2, 3}));
  options.top_k = 2;
  EXPECT_EQ(drawn(options), (std::set<int64_t>{0, 2}));
  options.top_k = 0;
  options.top_p = 0.6;  // 0.5 stays below 0.6, so the second is still needed
  EXPECT_EQ(drawn(options), (std::set<int64_t>{0, 2}));
  options.top_p = 0.45;
  EXPECT_EQ(drawn(options), (std::set<int64_t>{2}));
}

TEST(Sampling, DrawsFollowTheDistribution) {
  const at::Tensor row = at::log(at::tensor({0.1F, 0.6F, 0.3F}));
  const at::Tensor logits = row.expand({1, 100, 3}).contiguous();
  SamplingOptions options;
  options.temperature = 1.0;
  std::vector<double> counts(3, 0.0);
  for (uint64_t prompt = 0; prompt < 200; ++prompt) {
    const auto prediction = predict_tokens(logits, options, {{prompt, 0, 1}})[0];
    for (const int64_t token : prediction.token) counts[static_cast<size_t>(token)] += 1.0 / 20000;
  }
  // Standard deviation of each share is below 0.0035.
  EXPECT_NEAR(counts[0], 0.1, 0.015);
  EXPECT_NEAR(counts[1], 0.6, 0.015);
  EXPECT_NEAR(counts[2], 0.3, 0.015);
}

TEST(Sampling, ADrawDoesNotDependOnThePlaceInTheBatch) {
  const at::Tensor logits = random_logits(5, 3, 6, 23);
  const std::vector<StreamId> streams = streams_of(3);
  SamplingOptions options;
  options.temperature = 1.0;
  options.seed = 9;
  const auto together = predict_tokens(logits, options, streams);
  const at::Tensor turned = logits.flip({0}).contiguous();
  const auto reversed = predict_tokens(turned, options, {streams[2], streams[1], streams[0]});
  for (int64_t s = 0; s < 3; ++s) {
    const size_t at = static_cast<size_t>(s);
    const auto alone = predict_tokens(logits.narrow(0, s, 1), options, {streams[at]});
    EXPECT_EQ(together[at].token, alone[0].token);
    EXPECT_EQ(together[at].token, reversed[2 - at].token);
    EXPECT_EQ(together[at].confidence, alone[0].confidence);
  }
}

TEST(Sampling, StreamsDifferInEveryPartOfTheirName) {
  const std::set<double> draws{uniform_draw(0, {1, 2, 3}, 4), uniform_draw(1, {1, 2, 3}, 4),
                               uniform_draw(0, {2, 2, 3}, 4), uniform_draw(0, {1, 3, 3}, 4),
                               uniform_draw(0, {1, 2, 4}, 4), uniform_draw(0, {1, 2, 3}, 5),
                               uniform_draw(0, {2, 1, 3}, 4), uniform_draw(0, {1, 2, 4}, 3)};
  EXPECT_EQ(draws.size(), 8U);
}

TEST(Sampling, UniformDrawsFillTheUnitInterval) {
  double sum = 0.0;
  double smallest = 1.0;
  double largest = 0.0;
  constexpr int kDraws = 20000;
  for (int i = 0; i < kDraws; ++i) {
    const double u = uniform_draw(7, {static_cast<uint64_t>(i / 100), i % 10, i / 10 % 10}, i);
    ASSERT_GE(u, 0.0);
    ASSERT_LT(u, 1.0);
    sum += u / kDraws;
    smallest = std::min(smallest, u);
    largest = std::max(largest, u);
  }
  EXPECT_NEAR(sum, 0.5, 0.01);
  EXPECT_LT(smallest, 0.001);
  EXPECT_GT(largest, 0.999);
}

TEST(Sampling, ReadsHalfPrecisionLogitsInFloat32) {
  const at::Tensor logits = random_logits(6, 1, 4, 17).to(at::kBFloat16);
  const auto prediction = predict_tokens(logits, {}, streams_of(1))[0];
  for (int64_t i = 0; i < 4; ++i) {
    const auto p = softmax_reference(logits[0][i].to(at::kDouble), 1.0);
    const size_t at = static_cast<size_t>(i);
    EXPECT_NEAR(prediction.confidence[at], p[static_cast<size_t>(prediction.token[at])], 1e-6);
  }
}

TEST(SamplingOptionsCheck, RefusesWhatIsNoDistribution) {
  const auto refused = [](double temperature, int64_t top_k, double top_p) {
    SamplingOptions options;
    options.temperature = temperature;
    options.top_k = top_k;
    options.top_p = top_p;
    try {
      check_sampling_options(options);
    } catch (const UsageError&) {
      return true;
    }
    return false;
  };
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_FALSE(refused(0.0, 0, 1.0));
  EXPECT_FALSE(refused(1.5, 40, 0.1));
  EXPECT_TRUE(refused(-0.1, 0, 1.0));
  EXPECT_TRUE(refused(nan, 0, 1.0));
  EXPECT_TRUE(refused(1.0, -1, 1.0));
  EXPECT_TRUE(refused(1.0, 0, 0.0));
  EXPECT_TRUE(refused(1.0, 0, 1.1));
  EXPECT_TRUE(refused(1.0, 0, nan));
}

TEST(Sampling, TopKOfOneIsGreedyEvenWhereLogitsTie) {
  at::Tensor logits = random_logits(8, 2, 16, 9);
  logits.select(-1, 7).copy_(std::get<0>(logits.max(-1)));
  logits.select(-1, 3).copy_(logits.select(-1, 7));
  // One unit in the last place apart: a division by the temperature makes them equal.
  logits.select(1, 0).fill_(1.0F);
  logits.select(1, 0).select(-1, 5).fill_(std::nextafter(1.0F, 2.0F));
  const auto greedy = predict_tokens(logits, {}, streams_of(2));
  EXPECT_EQ(greedy[0].token[0], 5);
  for (const double temperature : {0.7, 1.0, 3.0}) {
    for (uint64_t seed = 0; seed < 20; ++seed) {
      SamplingOptions options;
      options.temperature = temperature;
      options.top_k = 1;
      options.seed = seed;
      const auto sampled = predict_tokens(logits, options, streams_of(2));
      for (size_t s = 0; s < 2; ++s) EXPECT_EQ(sampled[s].token, greedy[s].token);
    }
  }
}

}  // namespace
}  // namespace blockscope
