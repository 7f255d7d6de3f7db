// The choice of gamma as a pure function of the sums, compared with loops over the masks
// themselves.
#include "analysis/calibration/calibration.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "analysis/math/lowest_values.h"

namespace blockscope {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr std::int64_t kChannels = 16;

CalibrationSums random_sums(std::int64_t layers, std::int64_t heads, std::int64_t kv_heads,
                            unsigned seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> uniform(0.0, 1.0);
  CalibrationSums sums;
  sums.model = {layers, heads, kv_heads, std::string(64, 'a')};
  sums.sizes.num_heads = heads;
  sums.sizes.num_kv_heads = kv_heads;
  sums.sizes.head_dim = kChannels;
  sums.steps = 50;
  const auto each_layer = [layers](double value) {
    return std::vector<double>(static_cast<std::size_t>(layers), value);
  };
  sums.keys = each_layer(5000.0);
  sums.flops = each_layer(80000.0);
  HeadMatrix<double> similarity;
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    auto& row = similarity.emplace_back();
    for (std::int64_t head = 0; head < heads; ++head) {
      // Few distinct values (so that some are equal), and some heads that were not recorded.
      row.push_back(uniform(random) < 0.1 ? kNotMeasured : std::round(uniform(random) * 40) / 40);
    }
  }
  sums.similarity = {similarity};
  sums.standard_error = {
      HeadMatrix<double>(similarity.size(), std::vector<double>(similarity[0].size(), 0.01))};
  sums.count = {HeadMatrix<std::int64_t>(similarity.size(),
                                         std::vector<std::int64_t>(similarity[0].size(), 25))};
  sums.standard_deviation = sums.p5 = sums.standard_error;
  for (const std::int64_t tau : {1, 2, 3, 4}) {
    TauSums of_tau;
    of_tau.tau = tau;
    of_tau.reusing_steps = 10 * (tau - 1);
    RangeSums range;
    range.reusing_keys = each_layer(1000.0 * static_cast<double>(tau - 1));
    range.reusing_flops = each_layer(15000.0 * static_cast<double>(tau - 1));
    range.reused.resize(1);
    for (std::int64_t i = 0; i < layers * heads; ++i) {
      const std::int64_t terms = tau == 1 ? 0 : 160;
      range.reused[0].push_back({uniform(random), uniform(random), static_cast<double>(terms), 0.0,
                                 terms, terms * kChannels});
      range.recomputed.push_back({0.0, 0.0, 300.0, 300.0, 200, 200 * kChannels});
      if (terms == 0) range.reused[0].back() = {};
    }
    of_tau.ranges = {range};
    sums.taus.push_back(of_tau);
  }
  return sums;
}

/// The point from the mask, head by head.
ReusePoint slow_point(const CalibrationSums& sums, const HeadMatrix<bool>& mask, double gamma,
                      std::int64_t tau) {
  const RangeSums& of_tau = sums.at(tau).ranges[0];
  const auto heads = static_cast<std::size_t>(sums.model.heads);
  const auto group = static_cast<std::size_t>(sums.model.heads / sums.model.kv_heads);
  double squared = 0.0, absolute = 0.0, reference = 0.0, all = 0.0, groups = 0.0, masked = 0.0;
  ReusePoint point;
  point.gamma = gamma;
  for (std::size_t layer = 0; layer < mask.size(); ++layer) {
    for (std::size_t head = 0; head < heads; ++head) {
      const ReuseErrorSums& cell = of_tau.reused[0][layer * heads + head];
      reference += cell.reference;
      all += cell.reference + of_tau.recomputed[layer * heads + head].reference;
      point.terms += cell.terms;
      if (!mask[layer][head]) continue;
      ++point.heads;
      squared += cell.squared;
      absolute += cell.absolute;
      masked += cell.reference;
      point.terms_reused += cell.terms;
    }
    for (std::size_t first = 0; first < heads; first += group) {
      bool whole = true;
      for (std::size_t head = first; head < first + group; ++head) whole &= mask[layer][head];
      groups += whole ? 1.0 : 0.0;
    }
  }
  const auto share = [](double part, std::int64_t whole) {
    return part / static_cast<double>(whole);
  };
  point.byte_saving = of_tau.reusing_keys[0] / sums.keys[0] *
                      share(groups, sums.model.layers * sums.model.kv_heads);
  point.flop_saving = of_tau.reusing_flops[0] / sums.flops[0] *
                      share(static_cast<double>(point.heads), sums.model.layers * sums.model.heads);
  if (point.terms > 0) {
    point.relative_l2 = std::sqrt(squared / reference);
    point.mean_l1 = share(absolute, point.terms * kChannels);
  }
  if (point.terms_reused > 0) {
    point.relative_l2_reused = std::sqrt(squared / masked);
    point.mean_l1_reused = share(absolute, point.terms_reused * kChannels);
  }
  point.relative_l2_all_steps = std::sqrt(squared / all);
  return point;
}

void expect_same(double got, double wanted, const char* what) {
  if (std::isnan(wanted)) {
    EXPECT_TRUE(std::isnan(got)) << what;
  } else {
    EXPECT_NEAR(got, wanted, 1e-12) << what;
  }
}

/// Some measured heads pinned to something, some others to never.
std::vector<ReusePin> random_pins(const CalibrationSums& sums, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<ReusePin> pins;
  for (std::int64_t layer = 0; layer < sums.model.layers; ++layer) {
    for (std::int64_t head = 0; head < sums.model.heads; ++head) {
      const unsigned choice = random() % 4;
      if (choice > 1) continue;
      const bool measured = !std::isnan(
          sums.similarity[0][static_cast<std::size_t>(layer)][static_cast<std::size_t>(head)]);
      pins.push_back({layer, head, choice == 1 && measured});
    }
  }
  return pins;
}

void expect_exact(const CalibrationSums& sums, ReuseGranularity granularity,
                  const std::vector<ReusePin>& pins) {
  const ReusePredictor predictor(sums, granularity, pins);
  std::vector<double> gammas = predictor.gammas(1000);
  gammas.insert(gammas.end(), {-1.0, 0.0, 0.5, 1.0});
  for (const double gamma : gammas) {
    for (const std::int64_t tau : {1, 2, 4}) {
      const HeadMatrix<bool> mask =
          reuse_mask(sums.similarity[0], gamma, granularity, sums.model, pins);
      const ReusePoint slow = slow_point(sums, mask, gamma, tau);
      const ReusePoint fast = predictor.at(gamma, tau);
      EXPECT_EQ(fast.heads, slow.heads) << gamma;
      EXPECT_EQ(fast.terms, slow.terms);
      expect_same(fast.byte_saving, slow.byte_saving, "bytes");
      expect_same(fast.flop_saving, slow.flop_saving, "flops");
      EXPECT_EQ(fast.terms_reused, slow.terms_reused);
      expect_same(fast.relative_l2_reused, slow.relative_l2_reused, "L2 where reused");
      expect_same(fast.mean_l1_reused, slow.mean_l1_reused, "L1 where reused");
      expect_same(fast.relative_l2, slow.relative_l2, "L2");
      expect_same(fast.mean_l1, slow.mean_l1, "L1");
      expect_same(fast.relative_l2_all_steps, slow.relative_l2_all_steps, "L2, all steps");
    }
  }
}

std::string refusal(const CalibrationSums& sums, const CalibrationRequest& request) {
  try {
    choose(sums, request);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(CalibrationTest, EveryGammaPredictsWhatItsMaskSays) {
  for (const auto& [layers, heads, kv_heads] :
       {std::array{3, 8, 2}, std::array{1, 1, 1}, std::array{5, 4, 4}, std::array{2, 6, 1}}) {
    const CalibrationSums sums = random_sums(layers, heads, kv_heads, 7);
    for (const auto granularity : {ReuseGranularity::head, ReuseGranularity::kv_group}) {
      expect_exact(sums, granularity, {});
      expect_exact(sums, granularity, random_pins(sums, 13));
    }
  }
}

TEST(CalibrationTest, PinsHoldAtEveryGammaAndAreNeverUndecided) {
  const CalibrationSums sums = random_sums(3, 8, 2, 9);
  const std::vector<ReusePin> pins = random_pins(sums, 2);
  ASSERT_GT(pins.size(), 4U);
  const auto pinned_on = std::ranges::count(pins, true, &ReusePin::reuse);
  for (const auto granularity : {ReuseGranularity::head, ReuseGranularity::kv_group}) {
    for (const double gamma : {-1.0, 0.5, 1.0}) {
      const Calibration chosen = choose(sums, {gamma, {}, {}, 2, granularity, pins});
      for (const ReusePin& pin : pins) {
        EXPECT_EQ(chosen.reuse.heads[0][static_cast<std::size_t>(pin.layer)]
                                    [static_cast<std::size_t>(pin.head)],
                  pin.reuse);
      }
      std::int64_t heads = 0;
      for (const auto& row : chosen.reuse.heads[0]) heads += std::ranges::count(row, true);
      EXPECT_EQ(chosen.predicted.point.heads, heads);
      if (gamma == 1.0) {
        EXPECT_EQ(heads, pinned_on);
      }
      // The reader agrees with the file, pins included.
      const std::string text = to_json(to_reuse_file(sums, chosen));
      EXPECT_EQ(parse_reuse_file(text, "r.json").pins, pins);
    }
  }
  CalibrationSums close = random_sums(1, 4, 2, 1);
  close.similarity = {{{0.5, 0.5, 0.5, 0.9}}};
  EXPECT_EQ(choose(close, {0.5, {}, {}, 2}).trust.undecided, 3);
  EXPECT_EQ(choose(close, {0.5, {}, {}, 2, {}, {{0, 1, true}}}).trust.undecided, 2);
}

TEST(CalibrationTest, RefusesPinsOfHeadsThatWereNotMeasuredOrDontExist) {
  CalibrationSums sums = random_sums(1, 4, 2, 1);
  sums.similarity = {{{0.5, kNotMeasured, 0.7, 0.8}}};
  EXPECT_THAT(refusal(sums, {0.5, {}, {}, 2, {}, {{0, 1, true}}}), HasSubstr("layer 0, head 1"));
  EXPECT_EQ(refusal(sums, {0.5, {}, {}, 2, {}, {{0, 1, false}}}), "accepted");
  EXPECT_THAT(refusal(sums, {0.5, {}, {}, 2, {}, {{0, 4, false}}}), HasSubstr("head below 4"));
  EXPECT_THAT(refusal(sums, {0.5, {}, {}, 2, {}, {{-1, 0, false}}}), HasSubstr("layer below 1"));
}

TEST(CalibrationTest, WarnsWhenTheChoiceIsWorthNothing) {
  CalibrationSums sums = random_sums(1, 4, 2, 1);
  sums.similarity = {{{0.5, 0.9, 0.5, 0.9}}};
  EXPECT_THAT(warnings_of(choose(sums, {0.95, {}, {}, 2})),
              ElementsAre(HasSubstr("nothing will be reused")));
  EXPECT_THAT(warnings_of(choose(sums, {0.7, {}, {}, 2})),
              ElementsAre(HasSubstr("every prefix byte is still read")));
  EXPECT_THAT(warnings_of(choose(sums, {0.7, {}, {}, 2, {}, {{0, 0, true}}})), IsEmpty());
  EXPECT_THAT(warnings_of(choose(sums, {0.0, {}, {}, 1})),
              ElementsAre(HasSubstr("tau 1 never reuses")));
  EXPECT_THAT(warnings_of(choose(sums, {0.505, {}, {}, 2})),
              ElementsAre(HasSubstr("2 of 4 heads"), HasSubstr("every prefix byte")));
}

TEST(CalibrationTest, GammasMakeEverySetOfHeadsOnceFromAllToNone) {
  const CalibrationSums sums = random_sums(3, 8, 2, 3);
  const ReusePredictor predictor(sums, ReuseGranularity::head);
  std::int64_t before = predictor.at(-1.0, 2).heads + 1;
  for (const double gamma : predictor.gammas(1000)) {
    const std::int64_t heads = predictor.at(gamma, 2).heads;
    EXPECT_LT(heads, before);
    before = heads;
    // The heads change only where gamma crosses a similarity: all masks of this sample are met.
    EXPECT_TRUE(gamma >= -1.0 && gamma <= 1.0);
  }
  EXPECT_EQ(before, 0);
  EXPECT_EQ(predictor.at(predictor.gammas(1000).front(), 2).heads, predictor.at(-1.0, 2).heads);
  const std::vector<double> thin = predictor.gammas(5);
  EXPECT_EQ(thin.size(), 5U);
  EXPECT_EQ(thin.front(), predictor.gammas(1000).front());
  EXPECT_EQ(thin.back(), predictor.gammas(1000).back());
}

TEST(CalibrationTest, SavingAndErrorAreKeptByNoBetterGamma) {
  const CalibrationSums sums = random_sums(4, 8, 4, 11);
  for (const auto granularity : {ReuseGranularity::head, ReuseGranularity::kv_group}) {
    const ReusePredictor predictor(sums, granularity);
    for (const double saving : {0.01, 0.1, 0.2}) {
      const Calibration chosen = choose(sums, {{}, saving, {}, 3, granularity});
      EXPECT_GE(chosen.predicted.point.byte_saving, saving);
      for (const double gamma : predictor.gammas(1000)) {
        const ReusePoint point = predictor.at(gamma, 3);
        if (point.byte_saving >= saving) {
          EXPECT_LE(gamma, chosen.gamma[0]);
        }
      }
    }
    const Calibration chosen = choose(sums, {{}, {}, 0.06, 3, granularity});
    EXPECT_LE(chosen.predicted.point.relative_l2_reused, 0.06);
    EXPECT_GT(chosen.predicted.point.heads, 0);
    for (const double gamma : predictor.gammas(1000)) {
      const ReusePoint point = predictor.at(gamma, 3);
      if (point.relative_l2_reused <= 0.06) {
        EXPECT_GE(gamma, chosen.gamma[0]);
      }
    }
  }
}

TEST(CalibrationTest, HeadsThatDoNotReuseDoNotDiluteTheBoundedError) {
  CalibrationSums sums = random_sums(1, 4, 4, 7);
  sums.similarity = {{{0.9, 0.8, 0.7, 0.6}}};
  for (TauSums& tau : sums.taus) {
    const double errors[] = {0.2, 0.3, 0.1, 0.4};  // relative L2 of each head
    for (std::size_t head = 0; head < 4; ++head) {
      tau.ranges[0].reused[0][head].reference = 100.0;
      tau.ranges[0].reused[0][head].squared = errors[head] * errors[head] * 100.0;
    }
  }
  const ReusePredictor predictor(sums, ReuseGranularity::head);
  const ReusePoint one = predictor.at(0.85, 2);
  EXPECT_NEAR(one.relative_l2_reused, 0.2, 1e-12);
  EXPECT_NEAR(one.relative_l2, 0.1, 1e-12);  // over all four heads: half of it
  // 0.2; 0.255 with head 1; 0.216 with head 2: not monotonic, and the smallest gamma within.
  EXPECT_NEAR(choose(sums, {{}, {}, 0.22, 2}).predicted.point.relative_l2_reused, 0.21602, 1e-5);
  EXPECT_EQ(choose(sums, {{}, {}, 0.22, 2}).predicted.point.heads, 3);
  EXPECT_EQ(choose(sums, {{}, {}, 0.21, 2}).predicted.point.heads, 1);
  EXPECT_THAT(refusal(sums, {{}, {}, 0.15, 2}), HasSubstr("where reused"));
  EXPECT_THAT(refusal(sums, {{}, {}, 0.15, 2}), HasSubstr("The smallest error is 0.200001, at"));
}

TEST(CalibrationTest, SaysWhatIsInReach) {
  CalibrationSums sums = random_sums(3, 8, 2, 5);
  EXPECT_THAT(refusal(sums, {{}, 0.9, {}, 2}), HasSubstr("10 of 50 denoising steps"));
  EXPECT_THAT(refusal(sums, {{}, {}, 1e-9, 2}), HasSubstr("The smallest error is"));
  EXPECT_THAT(refusal(sums, {{}, {}, 0.5, 1}), HasSubstr("tau 1 never reuses"));
  EXPECT_THAT(refusal(sums, {0.5, 0.5, {}, 2}), HasSubstr("exactly one"));
  EXPECT_THAT(refusal(sums, {std::nan(""), {}, {}, 2}), HasSubstr("--gamma"));
  sums.taus[1].errors_known = false;
  EXPECT_THAT(refusal(sums, {{}, {}, 0.5, 2}), HasSubstr("--record outputs"));
  EXPECT_TRUE(std::isnan(choose(sums, {0.5, {}, {}, 2}).predicted.point.relative_l2));
}

TEST(CalibrationTest, CountsHeadsThatTheSampleCantDecide) {
  CalibrationSums sums = random_sums(1, 4, 2, 1);
  sums.similarity = {{{0.5, 0.519, 0.521, kNotMeasured}}};
  SampleTrust trust = choose(sums, {0.5, {}, {}, 2}).trust;  // standard errors are 0.01
  EXPECT_EQ(trust.measured, 3);
  EXPECT_EQ(trust.undecided, 2);
  EXPECT_EQ(trust.fewest_pairs, 25);
  sums.standard_error[0][0][2] = kNotMeasured;  // one pair
  EXPECT_EQ(choose(sums, {0.5, {}, {}, 2}).trust.undecided, 3);
}

TEST(CalibrationTest, MovingGammaTakesLessThanAFrame) {
  const CalibrationSums sums = random_sums(36, 32, 8, 2);
  const auto start = std::chrono::steady_clock::now();
  const Calibration chosen = choose(sums, {0.8, {}, {}, 2});
  const ReuseFile file = to_reuse_file(sums, chosen);
  const std::chrono::duration<double, std::milli> time = std::chrono::steady_clock::now() - start;
  EXPECT_EQ(file.curves.size(), 4U);
  // 10 ms on an idle core; the machine may be busy and the build unoptimised.
  EXPECT_LT(time.count(), 200.0);
  RecordProperty("milliseconds", std::to_string(time.count()));
}

TEST(LowestValuesTest, GivesThePercentileOfAllValues) {
  std::mt19937 random(4);
  for (const std::int64_t count : {1, 2, 19, 20, 21, 1000}) {
    LowestValues lowest(0.05, count + count / 3);  // more were expected than came
    std::vector<double> values;
    for (std::int64_t i = 0; i < count; ++i) {
      values.push_back(std::uniform_real_distribution<double>(-1.0, 1.0)(random));
      lowest.add(values.back());
    }
    std::sort(values.begin(), values.end());
    const double at = 0.05 * static_cast<double>(count - 1);
    const auto below = static_cast<std::size_t>(at);
    const double above = values[std::min(below + 1, values.size() - 1)];
    EXPECT_DOUBLE_EQ(lowest.percentile(),
                     values[below] + (above - values[below]) * (at - std::floor(at)))
        << count;
  }
  EXPECT_TRUE(std::isnan(LowestValues(0.05, 10).percentile()));
}

}  // namespace
}  // namespace blockscope
