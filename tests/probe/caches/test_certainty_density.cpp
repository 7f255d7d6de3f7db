// Certainty density in the cases that can be said without a formula.
#include "probe/caches/certainty_density.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace blockscope {
namespace {

TEST(CertaintyDensity, FallsWithTheDistanceFromWhatIsKnown) {
  const std::vector<float> density = certainty_density(std::vector<bool>(20, false), 3.0, {0, 20});
  for (size_t i = 1; i < density.size(); ++i) EXPECT_LT(density[i], density[i - 1]);
  EXPECT_NEAR(density[0], 0.434, 1e-3);  // all on the left is known: half, less half a position
}

TEST(CertaintyDensity, EverythingKnownIsWholeWhereTheKernelEndsWithinTheCanvas) {
  for (const float value : certainty_density(std::vector<bool>(40, true), 2.0, {0, 40})) {
    EXPECT_NEAR(value, 1.0F, 1e-6F);
  }
}

TEST(CertaintyDensity, WhatIsRightOfTheAnswerCountsAsItsLastPosition) {
  std::vector<bool> known(12, false);
  known.back() = true;
  const std::vector<float> open = certainty_density(std::vector<bool>(12, false), 2.0, {0, 12});
  const std::vector<float> closed = certainty_density(known, 2.0, {0, 12});
  const double sigma_sum = 2.0 * std::sqrt(2.0 * std::acos(-1.0));
  EXPECT_NEAR(open[11], 0.0, 1e-4);
  EXPECT_NEAR(closed[11] - open[11], 0.5 + 0.5 / sigma_sum, 1e-4);
}

}  // namespace
}  // namespace blockscope
