// Compares results with a float64 reference: sizes, then NaN and infinities (a mismatch fails
// before any tolerance is looked at), then the normalised mean squared error and the largest error.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

namespace blockscope::testing {

struct Limits {
  double nmse = 0.0;     // sum (got - expected)^2 / sum expected^2
  double largest = 0.0;  // max |got - expected|
};

inline ::testing::AssertionResult close_to(const std::vector<double>& got,
                                           const std::vector<double>& expected, Limits limits) {
  if (got.size() != expected.size()) {
    return ::testing::AssertionFailure()
           << "expected " << expected.size() << " values, got " << got.size();
  }
  double error = 0.0;
  double energy = 0.0;
  double largest = 0.0;
  std::size_t worst = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double e = expected[i];
    const double g = got[i];
    if (std::isnan(e) != std::isnan(g) || ((std::isinf(e) || std::isinf(g)) && e != g)) {
      return ::testing::AssertionFailure() << "value " << i << ": expected " << e << ", got " << g;
    }
    if (!std::isfinite(e)) continue;
    const double difference = std::abs(g - e);
    if (difference > largest) {
      largest = difference;
      worst = i;
    }
    error += difference * difference;
    energy += e * e;
  }
  const double nmse = energy > 0.0 ? error / energy : error;
  if (nmse <= limits.nmse && largest <= limits.largest) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure()
         << "nmse " << nmse << " (limit " << limits.nmse << "), largest error " << largest
         << " (limit " << limits.largest << ") at value " << worst << ": expected "
         << expected[worst] << ", got " << got[worst];
}

}  // namespace blockscope::testing
