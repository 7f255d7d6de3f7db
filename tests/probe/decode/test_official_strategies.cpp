// Our rules against what the authors' own functions chose: data/official_strategies.json, written
// by make_official_fixtures.py.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "probe/caches/certainty_density.h"
#include "probe/decode/sampling.h"
#include "probe/strategies/klass.h"
#include "probe/strategies/pc_sampler.h"
#include "probe/strategies/quota.h"
#include "probe/strategies/strategy_table.h"
#include "probe/strategies/unmasking.h"
#include "probe/strategies/wino.h"

namespace blockscope {
namespace {

using Positions = std::vector<int64_t>;

const std::vector<StreamId> kStream(1);

nlohmann::json cases_of(const std::string& name) {
  std::ifstream file(BLOCKSCOPE_SOURCE_DIR "/tests/probe/decode/data/official_strategies.json");
  return nlohmann::json::parse(file).at(name);
}

/// [1, rows, V] float32.
at::Tensor logits_of(const nlohmann::json& numbers, int64_t vocab) {
  auto values = numbers.get<std::vector<float>>();
  return at::tensor(values).view({1, -1, vocab});
}

TEST(OfficialKlass, TakesTheSamePositionsAtEveryStep) {
  std::map<KlassChoose, size_t> narrowed;
  size_t ready = 0;
  for (const auto& item : cases_of("klass")) {
    SCOPED_TRACE(item.at("history"));
    UnmaskingOptions options;
    options.strategy = "klass";
    options.block_length = options.denoising_steps = item.at("block").get<int64_t>();
    options.threshold = item.at("threshold").get<double>();
    options.kl_threshold = item.at("kl_threshold").get<double>();
    options.kl_history = item.at("history").get<int64_t>();
    options.klass_choose =
        read_strategy("klass,klass_choose=" + item.at("choose").get<std::string>()).klass_choose;
    KlassMemory memory;
    int64_t step = 0;
    for (const auto& given : item.at("steps")) {
      at::Tensor distributions;
      BlockPrediction prediction =
          predict_tokens(logits_of(given.at("logits"), item.at("vocab").get<int64_t>()), {},
                         kStream, prediction_needs(options), &distributions)[0];
      Positions all(given.at("masked").size());
      std::iota(all.begin(), all.end(), 0);
      prediction.kl = prediction.moved = memory.update(all, distributions[0]);
      for (const auto p : all) {
        prediction.stable.push_back(memory.stable(p, options.kl_threshold, options.kl_history));
      }
      const auto taken =
          select_transfers(options, step, prediction, given.at("masked").get<std::vector<bool>>());
      EXPECT_EQ(taken, given.at("taken").get<Positions>()) << "step " << step;
      if (taken.size() > 1) ++ready;
      UnmaskingOptions every = options;
      every.klass_choose = KlassChoose::kAll;
      const auto masked = given.at("masked").get<std::vector<bool>>();
      if (select_transfers(every, step, prediction, masked) != taken) {
        ++narrowed[options.klass_choose];
      }
      ++step;
    }
  }
  EXPECT_GT(ready, 5U) << "the cases hardly reach the rule itself";
  EXPECT_GT(narrowed[KlassChoose::kMaxConf], 5U) << "hardly a step has several to choose from";
  EXPECT_GT(narrowed[KlassChoose::kMinKl], 5U) << "hardly a step has several to choose from";
}

TEST(OfficialPcSampler, GivesTheSameScores) {
  for (const auto& item : cases_of("pc_sampler")) {
    const auto scores = pc_scores(item.at("token").get<Positions>(),
                                  item.at("confidence").get<std::vector<float>>(),
                                  item.at("share").get<std::vector<float>>(),
                                  item.at("lambda").get<double>(), item.at("alpha").get<double>());
    const auto wanted = item.at("score").get<std::vector<float>>();
    ASSERT_EQ(scores.size(), wanted.size());
    for (size_t i = 0; i < scores.size(); ++i) {
      EXPECT_NEAR(scores[i], wanted[i], 1e-6F * std::max(1.0F, wanted[i])) << "position " << i;
    }
  }
}

TEST(OfficialWino, FillsAndRevokesTheSamePositions) {
  size_t capped = 0;
  size_t revoked = 0;
  for (const auto& item : cases_of("wino")) {
    int64_t last_accepted = kWinoFirstAccepted;
    for (const auto& step : item.at("steps")) {
      const auto masked = step.at("masked").get<std::vector<bool>>();
      const auto confidence = step.at("confidence").get<std::vector<double>>();
      const Positions taken = wino_wide_in(confidence, masked, item.at("threshold").get<double>());
      EXPECT_EQ(taken, step.at("taken").get<Positions>());
      std::vector<bool> decided = masked;
      decided.flip();
      const auto accepted = static_cast<int64_t>(taken.size());
      const Positions back =
          wino_narrow_out(step.at("shadow").get<std::vector<double>>(), decided,
                          item.at("threshold_back").get<double>(), accepted, last_accepted);
      EXPECT_EQ(back, step.at("revoked").get<Positions>());
      if (static_cast<int64_t>(back.size()) == last_accepted - 1) ++capped;
      revoked += back.size();
      last_accepted = accepted;
    }
  }
  EXPECT_GT(revoked, 50U);
  EXPECT_GT(capped, 5U) << "no case reaches the bound on revoked positions";
}

TEST(OfficialDensity, IsTheSameToTheirFloat32) {
  for (const auto& item : cases_of("density")) {
    const auto decided = item.at("decided").get<std::vector<bool>>();
    const auto wanted = item.at("density").get<std::vector<float>>();
    const auto whole = certainty_density(decided, item.at("sigma").get<double>(),
                                         {0, static_cast<int64_t>(decided.size())});
    for (size_t i = 0; i < wanted.size(); ++i) EXPECT_NEAR(whole[i], wanted[i], 1e-6F);
  }
}

TEST(OfficialPrefixOrdered, TakesTheSamePrefix) {
  size_t several = 0;
  for (const auto& item : cases_of("prefix_ordered")) {
    const auto masked = item.at("masked").get<std::vector<bool>>();
    UnmaskingOptions options;
    options.strategy = "prefix_ordered";
    options.threshold = item.at("threshold").get<double>();
    // A schedule whose first step is due as many.
    options.block_length = item.at("due").get<int64_t>();
    options.denoising_steps = 1;
    BlockPrediction prediction;
    prediction.confidence = item.at("confidence").get<std::vector<float>>();
    const auto taken = select_transfers(options, 0, prediction, masked);
    EXPECT_EQ(taken, item.at("taken").get<Positions>()) << item.dump();
    if (static_cast<int64_t>(taken.size()) > options.block_length) ++several;
  }
  EXPECT_GT(several, 5U) << "no case takes more than what is due";
}

TEST(OfficialScores, AreTheSame) {
  for (const auto& item : cases_of("score")) {
    const at::Tensor logits = logits_of(item.at("logits"), item.at("vocab").get<int64_t>());
    for (const RankBy rank_by : {RankBy::kConfidence, RankBy::kMargin, RankBy::kNegativeEntropy}) {
      const auto got = predict_tokens(logits, {}, kStream, {.rank_by = rank_by})[0];
      const auto wanted = item.at(rank_by_name(rank_by)).get<std::vector<double>>();
      for (size_t i = 0; i < wanted.size(); ++i) {
        const double score = got.score.empty() ? got.confidence[i] : got.score[i];
        EXPECT_NEAR(score, wanted[i], 1e-6) << rank_by_name(rank_by);
      }
    }
  }
}

TEST(OfficialLinearQuota, CountsAsDreamsLoopDoes) {
  size_t empty = 0;
  for (const auto& item : cases_of("quota")) {
    auto masks = item.at("masks").get<int64_t>();
    const auto steps = item.at("steps").get<int64_t>();
    int64_t step = 0;
    for (const auto& taken : item.at("taken")) {
      const int64_t due = linear_quota(masks, steps, step++);
      EXPECT_EQ(due, taken.get<int64_t>()) << "step " << step << " of " << steps;
      if (due == 0 && masks > 0) ++empty;
      masks -= due;
    }
    EXPECT_EQ(masks, 0);
  }
  EXPECT_GT(empty, 10U) << "no step is due nothing";
}

}  // namespace
}  // namespace blockscope
