// Two sets key by key, against std::set and counting by hand.
#include "analysis/math/set_comparison.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include "decode_record/base/error.h"

namespace blockscope {
namespace {

using Positions = std::vector<std::int32_t>;

TEST(SetComparison, TellsHitsMissesAndExtraWithTheirRanks) {
  // k' = 3: the exact set's first three are 40, 7, 12; 30 is exact too, but after them.
  const SetComparison sets = compare_sets(Positions{7, 30, 99, -1}, Positions{40, 7, 12, 30}, 3);
  EXPECT_EQ(sets.compared, 3U);
  EXPECT_EQ(sets.keys, (std::vector<ComparedKey>{{7, 0, 1, KeyMark::both},
                                                 {12, -1, 2, KeyMark::exact_only},
                                                 {30, 1, 3, KeyMark::chosen_only},
                                                 {40, -1, 0, KeyMark::exact_only},
                                                 {99, 2, -1, KeyMark::chosen_only}}));
  EXPECT_EQ(sets.hits, 1);
  EXPECT_EQ(sets.misses, 2);
  EXPECT_EQ(sets.extra, 2);
  EXPECT_DOUBLE_EQ(sets.accuracy(), 1.0 / 3.0);
}

TEST(SetComparison, NoKeyIsNoAccuracy) {
  const SetComparison none = compare_sets(Positions{-1, -1}, Positions{}, 2);
  EXPECT_EQ(none.compared, 0U);
  EXPECT_TRUE(none.keys.empty());
  EXPECT_TRUE(std::isnan(none.accuracy()));
  // One set alone: everything of it is marked.
  EXPECT_EQ(compare_sets(Positions{5, 3}, Positions{}, 2).extra, 2);
  EXPECT_EQ(compare_sets(Positions{}, Positions{5, 3, 1}, 2).misses, 2);
}

TEST(SetComparison, RefusesWhatIsNoSet) {
  EXPECT_THROW(compare_sets(Positions{1, 1}, Positions{2}, 1), Error);
  EXPECT_THROW(compare_sets(Positions{1}, Positions{2, 2}, 1), Error);
  EXPECT_THROW(compare_sets(Positions{-2}, Positions{2}, 1), Error);
  EXPECT_THROW(compare_sets(Positions{1}, Positions{1 << 24}, 1), Error);
}

TEST(SetComparison, AgreesWithSetsOfTheLibrary) {
  std::mt19937 random(3);
  for (int round = 0; round < 200; ++round) {
    Positions all(60);
    std::iota(all.begin(), all.end(), 0);
    const auto draw = [&](std::size_t size) {
      std::ranges::shuffle(all, random);
      return Positions(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(size));
    };
    const Positions chosen = draw(random() % 30);
    const Positions exact = draw(random() % 40);
    const std::size_t k = random() % 40;
    const SetComparison sets = compare_sets(chosen, exact, k);
    const std::size_t compared = std::min(k, exact.size());
    ASSERT_EQ(sets.compared, compared);
    const std::set<std::int32_t> a(chosen.begin(), chosen.end());
    const std::set<std::int32_t> b(exact.begin(),
                                   exact.begin() + static_cast<std::ptrdiff_t>(compared));
    std::vector<std::int32_t> both;
    std::ranges::set_intersection(a, b, std::back_inserter(both));
    ASSERT_EQ(sets.hits, std::ssize(both));
    ASSERT_EQ(sets.misses, std::ssize(b) - std::ssize(both));
    ASSERT_EQ(sets.extra, std::ssize(a) - std::ssize(both));
    ASSERT_TRUE(std::ranges::is_sorted(sets.keys, std::less_equal(), &ComparedKey::position));
    for (const ComparedKey& key : sets.keys) {
      const bool in_a = a.contains(key.position);
      const bool in_b = b.contains(key.position);
      ASSERT_EQ(key.mark, in_a && in_b ? KeyMark::both
                          : in_b       ? KeyMark::exact_only
                                       : KeyMark::chosen_only);
      ASSERT_TRUE(!in_a || chosen[static_cast<std::size_t>(key.chosen_rank)] == key.position);
      ASSERT_TRUE(!in_b || exact[static_cast<std::size_t>(key.exact_rank)] == key.position);
    }
  }
}

}  // namespace
}  // namespace blockscope
