// Sets of prefix positions as /sets stores them: by falling score, padded with -1. Intersections
// for every smaller k at once, and the size of a union. Tables over positions instead of sorting:
// a set is a few hundred of some ten thousand positions, and such a table stays in the L1/L2 cache.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace blockscope {

/// Entries before the first -1 (the padding of rows with N < k, or of rows without sets).
std::size_t set_length(std::span<const std::int32_t> set);

/// Looks up the rank of a position in one set. Not thread-safe: one per worker or layer.
class RankTable {
 public:
  /// Makes this the table of `set` (padding is ignored). Throws Error for positions below -1,
  /// beyond kMaxPosition, or named twice.
  void assign(std::span<const std::int32_t> set);

  /// Ranks in this table's set, from 0, of the members of `set`; negative: not in it, or padding.
  /// out: [set.size()]. Throws Error for positions below -1 or beyond kMaxPosition.
  void ranks_of(std::span<const std::int32_t> set, std::span<std::int32_t> out);

  /// No model has a longer context; keeps a damaged file from asking for gigabytes.
  static constexpr std::int32_t kMaxPosition = (1 << 24) - 1;

 private:
  void cover(std::span<const std::int32_t> set);
  std::vector<std::int32_t> table_;  // base + rank by position + 1; below base: not in the set
  std::int32_t base_ = 1;
  std::int32_t size_ = 0;  // of the set
};

/// Ranks in [0, limit). With the ranks in B of A[:k] (RankTable::ranks_of) and the limit k it is
/// |A[:k] n B[:k]|, for sets by falling score.
std::int64_t count_ranks_below(std::span<const std::int32_t> ranks, std::int32_t limit);

/// Sum of the values whose rank is in [0, limit). [ranks.size()] each.
double sum_ranks_below(std::span<const float> values, std::span<const std::int32_t> ranks,
                       std::int32_t limit);

/// Refuses what is no set. Not thread-safe.
class SetChecker {
 public:
  /// Returns set_length(set). Throws Error for what RankTable::assign refuses.
  std::size_t check(std::span<const std::int32_t> set);

 private:
  std::vector<std::uint8_t> last_;  // by position + 1: in which round it was met
  std::uint8_t round_ = 0;
};

/// Counts the distinct positions of many sets. Not thread-safe.
class UnionCounter {
 public:
  /// Distinct positions in `sets` (any number of sets one after the other; -1 is not counted).
  /// Throws Error for positions below -1 or beyond RankTable::kMaxPosition.
  std::int64_t count(std::span<const std::int32_t> sets);

 private:
  std::vector<std::uint8_t> seen_;  // by position + 1; all 0 between calls
};

/// |token set n S| for two sets S at once, over many token sets.
class OverlapCounter {
 public:
  struct Counts {
    std::int64_t a = 0;
    std::int64_t b = 0;
  };
  /// Sets A and B; padding is ignored. Throws Error as RankTable does.
  void assign(std::span<const std::int32_t> a, std::span<const std::int32_t> b);
  /// How many entries of `set` are in A and in B. Any values.
  Counts count(std::span<const std::int32_t> set) const;

 private:
  void mark(std::span<const std::int32_t> set, std::uint64_t bit);
  std::vector<std::uint64_t> table_;  // by position: 1 in A, 2^32 in B
  std::vector<std::int32_t> members_;
};

}  // namespace blockscope
