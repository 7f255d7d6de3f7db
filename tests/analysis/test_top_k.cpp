#include "analysis/math/top_k.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "decode_record/error.h"
#include "tests/support/seed.h"

namespace blockscope {
namespace {

using ::testing::ElementsAre;
using testing::SeededRandom;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Straight from the definition: a full stable sort by falling score.
std::vector<std::int32_t> sorted_prefix(const float* row, std::int64_t n, std::int64_t k) {
  std::vector<std::int32_t> order;
  for (std::int32_t i = 0; i < n; ++i) {
    if (!std::isnan(row[i])) order.push_back(i);
  }
  std::stable_sort(order.begin(), order.end(),
                   [row](std::int32_t a, std::int32_t b) { return row[a] > row[b]; });
  order.resize(static_cast<std::size_t>(k), -1);
  return order;
}

void expect_matches(const std::vector<float>& scores, std::int64_t rows, std::int64_t n,
                    std::int64_t k, std::size_t threads = 1) {
  const TopKSets sets = top_k(scores, rows, n, k, threads);
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::vector<std::int32_t> got(sets.index.begin() + r * k,
                                        sets.index.begin() + (r + 1) * k);
    ASSERT_EQ(got, sorted_prefix(scores.data() + r * n, n, k))
        << "row " << r << ", n " << n << ", k " << k;
  }
}

TEST(TopK, EqualsAFullSortForManyShapes) {
  SeededRandom random(21);
  for (const std::int64_t n : {1, 2, 7, 63, 64, 513, 4096, 20000}) {
    for (const std::int64_t k : {1, 2, 16, 300, 512}) {
      std::vector<float> scores(static_cast<std::size_t>(3 * n));
      for (float& score : scores) score = static_cast<float>(random.normal());
      expect_matches(scores, 3, n, k, 2);
    }
  }
}

TEST(TopK, SoftmaxScoresWithHeavyTailsAndAlmostAllOnOneKey) {
  SeededRandom random(22);
  std::vector<float> scores(30000);
  for (float& score : scores) score = static_cast<float>(std::exp(8.0 * random.normal()));
  expect_matches(scores, 1, 30000, 512);
  std::fill(scores.begin(), scores.end(), 0.0F);
  scores[17000] = 1.0F;
  expect_matches(scores, 1, 30000, 512);
}

TEST(TopK, TheSampleMayMisjudgeTheRow) {
  // Everything large sits where the sample looks, then where it never looks.
  for (const std::size_t offset : {std::size_t{0}, std::size_t{1}, std::size_t{29}}) {
    std::vector<float> scores(512 * 58, 0.0F);
    for (std::size_t i = offset; i < scores.size(); i += 58)
      scores[i] = static_cast<float>(i) + 1.0F;
    expect_matches(scores, 1, static_cast<std::int64_t>(scores.size()), 600);
  }
}

TEST(TopK, TiesGoToTheLowerPosition) {
  EXPECT_THAT(top_k(std::vector<float>{1, 2, 2, 1, 2}, 1, 5, 3).index, ElementsAre(1, 2, 4));
  EXPECT_THAT(top_k(std::vector<float>{-0.0F, 0.0F, -0.0F}, 1, 3, 2).index, ElementsAre(0, 1));
  std::vector<float> few_values(9000);
  SeededRandom random(23);
  for (float& score : few_values) score = static_cast<float>(random.integer(0, 3));
  expect_matches(few_values, 1, 9000, 400);
  few_values.resize(3000);  // short: all in few buckets
  expect_matches(few_values, 3, 1000, 64);
  std::fill_n(few_values.begin(), 900, -kInfinity);
  few_values[7] = kInfinity;
  expect_matches(few_values, 1, 3000, 512);
}

TEST(TopK, NegativeAndInfiniteScoresKeepTheirOrder) {
  EXPECT_THAT(top_k(std::vector<float>{-3, -kInfinity, kInfinity, -1, 5}, 1, 5, 5).index,
              ElementsAre(2, 4, 3, 0, 1));
}

TEST(TopK, NaNIsCountedAndInNoSet) {
  const TopKSets sets = top_k(std::vector<float>{kNaN, 1, kNaN, 3}, 1, 4, 3);
  EXPECT_THAT(sets.index, ElementsAre(3, 1, -1));
  EXPECT_EQ(sets.not_a_number, 2);
  std::vector<float> scores(6000, kNaN);
  scores[77] = 1.0F;
  EXPECT_THAT(top_k(scores, 1, 6000, 2).index, ElementsAre(77, -1));
}

TEST(TopK, RowsWithFewerScoresThanKArePadded) {
  EXPECT_THAT(top_k(std::vector<float>{4, 9}, 2, 1, 2).index, ElementsAre(0, -1, 0, -1));
  EXPECT_THAT(top_k(std::vector<float>{}, 1, 0, 2).index, ElementsAre(-1, -1));
  EXPECT_TRUE(top_k(std::vector<float>{}, 0, 5, 2).index.empty());
}

TEST(TopK, RefusesShapesThatContradictEachOther) {
  EXPECT_THROW(top_k(std::vector<float>(5), 2, 3, 1), UsageError);
  EXPECT_THROW(top_k(std::vector<float>(5), 1, 5, 0), UsageError);
  EXPECT_THROW(top_k(std::vector<float>(5), -1, -5, 1), UsageError);
}

}  // namespace
}  // namespace blockscope
