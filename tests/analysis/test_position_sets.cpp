#include "analysis/math/position_sets.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "analysis/math/set_loops.h"
#include "decode_record/base/error.h"
#include "tests/support/seed.h"

namespace blockscope {
namespace {

using Set = std::vector<std::int32_t>;
using testing::SeededRandom;

Set random_set(SeededRandom& random, std::int32_t positions, std::size_t size) {
  Set all(static_cast<std::size_t>(positions));
  std::iota(all.begin(), all.end(), 0);
  for (std::size_t i = 0; i < size; ++i) {
    const auto j = random.integer(static_cast<std::int64_t>(i), positions - 1);
    std::swap(all[i], all[static_cast<std::size_t>(j)]);
  }
  all.resize(size);
  return all;
}

/// -1 for every position that is not in the table's set.
Set ranks_of(RankTable& table, const Set& set) {
  Set ranks(set.size());
  table.ranks_of(set, ranks);
  for (std::int32_t& rank : ranks) rank = std::max(rank, -1);
  return ranks;
}

std::int64_t shared_prefix(const Set& a, const Set& b, std::size_t k) {
  const std::set<std::int32_t> first(a.begin(), a.begin() + static_cast<std::ptrdiff_t>(k));
  return std::count_if(b.begin(), b.begin() + static_cast<std::ptrdiff_t>(k),
                       [&](std::int32_t p) { return first.count(p) > 0; });
}

TEST(PositionSets, RanksGiveTheIntersectionOfEveryPrefix) {
  SeededRandom random(11);
  RankTable table;
  for (int round = 0; round < 50; ++round) {
    const auto k = static_cast<std::size_t>(random.integer(1, 70));
    const auto positions =
        static_cast<std::int32_t>(random.integer(static_cast<std::int64_t>(k), 300));
    const Set a = random_set(random, positions, k);
    const Set b = random_set(random, positions, k);
    table.assign(b);
    const Set ranks = ranks_of(table, a);
    for (std::size_t size = 1; size <= k; ++size) {
      ASSERT_EQ(count_ranks_below(std::span(ranks).first(size), static_cast<std::int32_t>(size)),
                shared_prefix(a, b, size))
          << "round " << round << " k' " << size;
    }
  }
}

TEST(PositionSets, ATableForgetsTheSetBefore) {
  RankTable table;
  table.assign(Set{500, 3});
  table.assign(Set{7});
  EXPECT_THAT(ranks_of(table, Set{500, 3, 7, -1, RankTable::kMaxPosition}),
              ::testing::ElementsAre(-1, -1, 0, -1, -1));
  EXPECT_THROW(ranks_of(table, Set{-2}), Error);
  EXPECT_THROW(ranks_of(table, Set{RankTable::kMaxPosition + 1}), Error);
}

TEST(PositionSets, PaddingIsNoMember) {
  RankTable table;
  table.assign(Set{4, 2, -1, -1});
  const Set ranks = ranks_of(table, Set{2, 4, 7, -1});
  EXPECT_THAT(ranks, ::testing::ElementsAre(1, 0, -1, -1));
  EXPECT_EQ(count_ranks_below(ranks, 4), 2);
  EXPECT_EQ(count_ranks_below(ranks, 1), 1);
  EXPECT_EQ(set_length(Set{4, 2, -1, -1}), 2U);
  EXPECT_EQ(set_length(Set{}), 0U);
  EXPECT_EQ(set_length(Set{1}), 1U);
}

TEST(PositionSets, RepeatedAndImpossiblePositionsAreErrors) {
  RankTable table;
  EXPECT_THROW(table.assign(Set{3, 3}), Error);
  EXPECT_THROW(table.assign(Set{-2}), Error);
  EXPECT_THROW(table.assign(Set{RankTable::kMaxPosition + 1}), Error);
  table.assign(Set{3, 1});
  EXPECT_EQ(ranks_of(table, Set{3}), Set{0}) << "the table survives an error";
  UnionCounter unions;
  EXPECT_THROW(unions.count(Set{5, -7}), Error);
  EXPECT_EQ(unions.count(Set{5, 5}), 1) << "the counter survives an error";
}

TEST(PositionSets, TheCheckerRefusesWhatIsNoSet) {
  SetChecker checker;
  for (int round = 0; round < 600; ++round) {  // more rounds than its marks can distinguish
    ASSERT_NO_THROW(checker.check(Set{5, 6 + round % 3, -1, -1}));
    if (round % 100 != 0) continue;
    EXPECT_THROW(checker.check(Set{5, -1, 6, 5}), Error);
    EXPECT_THROW(checker.check(Set{-2}), Error);
    EXPECT_THROW(checker.check(Set{RankTable::kMaxPosition + 1}), Error);
  }
  try {
    checker.check(Set{-1, -1, 9, 7, 2, 7});
    FAIL() << "7 comes twice";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("7 twice"));
  }
}

TEST(PositionSets, TheLoopsOfEveryInstructionSetDoTheSame) {
  SeededRandom random(13);
  std::size_t count = 0;
  const SetLoops* const* variants = available_set_loops(&count);
  ASSERT_GE(count, 1U);
  for (const std::size_t size : {0U, 1U, 7U, 8U, 9U, 16U, 31U, 100U, 513U}) {
    constexpr std::int32_t kPositions = 1000;
    constexpr std::int32_t kBase = 40;
    std::vector<std::int32_t> table, positions;
    for (std::int32_t i = 0; i <= kPositions; ++i) {
      table.push_back(static_cast<std::int32_t>(random.integer(0, 2 * kBase)));
    }
    std::vector<float> values;
    std::uint32_t bits = 0;
    std::size_t padding = 0;
    for (std::size_t i = 0; i < size; ++i) {
      positions.push_back(static_cast<std::int32_t>(random.integer(-1, kPositions - 1)));
      values.push_back(static_cast<float>(random.integer(0, 1000)));
      bits |= static_cast<std::uint32_t>(positions[i] + 1);
      padding += positions[i] == -1 ? 1U : 0U;
      const std::int32_t rank = table[static_cast<std::size_t>(positions[i] + 1)] - kBase;
      if (rank < 0 || rank >= kBase / 2) values[i] = std::nanf("");
    }
    for (std::size_t v = 0; v < count; ++v) {
      const SetLoops& loops = *variants[v];
      SCOPED_TRACE(std::string(loops.instruction_set) + ", " + std::to_string(size));
      EXPECT_EQ(loops.bits(positions.data(), size), bits);
      EXPECT_EQ(loops.padding(positions.data(), size), padding);
      std::vector<float> numbers(size);
      std::iota(numbers.begin(), numbers.end(), 1.0F);
      EXPECT_EQ(loops.sum(numbers.data(), size), static_cast<double>(size * (size + 1) / 2));
      std::vector<std::int32_t> ranks(size);
      loops.ranks(table.data(), kBase, positions.data(), size, ranks.data());
      for (const std::int32_t limit : {0, 1, kBase / 2}) {
        std::size_t below = 0;
        double sum = 0.0;
        for (std::size_t i = 0; i < size; ++i) {
          ASSERT_EQ(ranks[i], table[static_cast<std::size_t>(positions[i] + 1)] - kBase);
          if (ranks[i] < 0 || ranks[i] >= limit) continue;
          ++below;
          sum += static_cast<double>(values[i]);
        }
        EXPECT_EQ(loops.count_below(ranks.data(), size, limit), below);
        EXPECT_EQ(loops.sum_below(values.data(), ranks.data(), size, limit), sum);
      }
    }
  }
}

TEST(PositionSets, UnionCountsDistinctPositionsForDenseAndSparseTables) {
  SeededRandom random(12);
  UnionCounter counter;
  for (const std::int32_t positions : {1, 2, 127, 128, 129, 1000, 1 << 20}) {
    for (const std::size_t entries : {std::size_t{1}, std::size_t{40}, std::size_t{3000}}) {
      Set list;
      for (std::size_t i = 0; i < entries; ++i) {
        list.push_back(static_cast<std::int32_t>(random.integer(-1, positions - 1)));
      }
      std::set<std::int32_t> expected(list.begin(), list.end());
      expected.erase(-1);
      ASSERT_EQ(counter.count(list), static_cast<std::int64_t>(expected.size()))
          << positions << " positions, " << entries << " entries";
    }
  }
  EXPECT_EQ(counter.count(Set{}), 0);
  EXPECT_EQ(counter.count(Set{-1, -1}), 0);
}

TEST(PositionSets, OverlapCountsMembersOfBothSets) {
  OverlapCounter counter;
  counter.assign(Set{1, 2, 3, -1}, Set{3, 4});
  const auto counts = counter.count(Set{3, 4, 2, 90, -1});
  EXPECT_EQ(counts.a, 2);
  EXPECT_EQ(counts.b, 2);
  counter.assign(Set{90}, Set{});
  EXPECT_EQ(counter.count(Set{3, 90}).a, 1);
  EXPECT_EQ(counter.count(Set{3, 90}).b, 0);
  EXPECT_THROW(counter.assign(Set{1, 1}, Set{}), Error);
}

}  // namespace
}  // namespace blockscope
