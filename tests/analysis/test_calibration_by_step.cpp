// Masks by ranges of steps: whose pair a head takes decides its error, and each range has its
// gamma.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "analysis/calibration/calibration.h"

namespace blockscope {
namespace {

using ::testing::HasSubstr;

/// Two heads, three ranges, tau 2. The squared error of a range's sums is another power of ten for
/// each source.
CalibrationSums two_heads() {
  CalibrationSums sums;
  sums.model = {1, 2, 2, std::string(64, 'a')};
  sums.sizes.num_heads = sums.sizes.num_kv_heads = 2;
  sums.sizes.head_dim = 16;
  sums.steps = 50;
  sums.keys = {5000.0};
  sums.flops = {80000.0};
  sums.ranges.first = {1, 3, 5};
  sums.similarity = {{{0.9, 0.1}}, {{0.1, 0.9}}, {{0.9, 0.9}}};
  sums.lse_drift = {{{0.0, 0.0}}, {{0.0, 0.0}}, {{0.3, 0.0}}};
  for (auto* matrices : {&sums.standard_deviation, &sums.standard_error, &sums.p5}) {
    matrices->assign(3, {{0.01, 0.01}});
  }
  sums.count.assign(3, {{25, 25}});
  TauSums tau;
  tau.tau = 2;
  double digit = 1.0;
  for (std::size_t range = 0; range < 3; ++range) {
    RangeSums& of_range = tau.ranges.emplace_back();
    of_range.reusing_keys = {100.0 * static_cast<double>(range + 1)};
    of_range.reusing_flops = {0.0};
    of_range.recomputed.resize(2);
    for (std::size_t source = 0; source <= range; ++source, digit *= 10.0) {
      of_range.reused.emplace_back(2, ReuseErrorSums{digit, 0.0, 1e6, 0.0, 10, 160});
    }
  }
  sums.taus = {tau};
  return sums;
}

std::string message_of(const CalibrationSums& sums, const CalibrationRequest& request) {
  try {
    choose(sums, request);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(CalibrationByStep, AHeadsErrorComesFromItsOwnLastRead) {
  const CalibrationSums sums = two_heads();
  const ReusePredictor predictor(sums, ReuseGranularity::head);
  // Head 0 reuses in ranges 0 and 2, head 1 in ranges 1 and 2. In range 2, head 0 has the pair of
  // the end of range 1. Head 1 has that of the end of range 0, in ranges 1 and 2.
  const ReusePoint point = predictor.at(0.5, 2);
  EXPECT_EQ(point.heads, 4);
  EXPECT_NEAR(point.relative_l2_reused, std::sqrt((1.0 + 1e5 + 100.0 + 1e4) / 4e6), 1e-12);
  EXPECT_NEAR(point.byte_saving, (100.0 + 200.0 + 2 * 300.0) / 2.0 / 5000.0, 1e-12);
  // A gamma for each range: now head 0 reuses in all ranges, always the rule's pair.
  const ReusePoint other = predictor.at({0.5, 0.0, 0.5}, 2);
  EXPECT_EQ(other.heads, 5);
  EXPECT_NEAR(other.relative_l2_reused, std::sqrt((1.0 + 10.0 + 1e3 + 100.0 + 1e4) / 5e6), 1e-12);
  EXPECT_EQ(predictor.heads({0.5, 0.0, 0.5}), 5);
  // The drift of head 0 in range 2 is too large at any gamma.
  const Calibration bounded = choose(sums, {0.5, {}, {}, 2, {}, {}, 0.2});
  EXPECT_EQ(bounded.reuse.heads[2], (HeadMatrix<bool>{{false, true}}));
  EXPECT_EQ(bounded.predicted.point.heads, 3);
  EXPECT_EQ(choose(sums, {{}, {}, {}, 2, {}, {}, {}, {0.5, 0.0, 0.5}}).predicted.point.heads, 5);
  EXPECT_THAT(message_of(sums, {{}, {}, {}, 2, {}, {}, {}, {0.5, 0.5}}), HasSubstr("3 ranges"));
  EXPECT_THAT(message_of(sums, {0.5, {}, {}, 2, {}, {}, -1.0}), HasSubstr("--lse-bound"));
}

TEST(CalibrationByStep, RangesOfStepsAreReadOrRefusedByName) {
  EXPECT_EQ(parse_step_ranges("--by-step", "2-4,5-8").first, (std::vector<std::int64_t>{1, 5}));
  EXPECT_EQ(parse_step_ranges("--by-step", "1,2,3-9").first, (std::vector<std::int64_t>{1, 2, 3}));
  for (const char* text : {"", "2-4,", "3-4", "2-4,4-8", "2-4,6-8", "4-2", "2-x", "0-4", "-4"}) {
    EXPECT_THROW(parse_step_ranges("--by-step", text), UsageError) << text;
  }
}

}  // namespace
}  // namespace blockscope
