// Sets of prefix positions as in /sets: by falling score, padded with -1. Computes intersections
// for every smaller k at once, and the size of a union. It uses tables over positions instead of
// sorting: a set has a few hundred of some ten thousand positions, and such a table stays in the
// L1/L2 cache.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace blockscope {

/// Number of entries before the first -1. Rows with N < k and rows without sets are padded with -1.
std::size_t set_length(std::span<const std::int32_t> set);

/// Looks up the rank of a position in one set. Not thread-safe: use one per worker or layer.
class RankTable {
 public:
  /// Makes this the table of `set` (padding is ignored). Throws Error for positions below -1, above
  /// kMaxPosition, or in the set twice.
  void assign(std::span<const std::int32_t> set);

  /// Writes the ranks, from 0, that the members of `set` have in this table's set. Negative: not in
  /// it, or padding. out: [set.size()]. Throws Error for positions below -1 or above kMaxPosition.
  void ranks_of(std::span<const std::int32_t> set, std::span<std::int32_t> out);

  /// No model has a longer context. The limit stops a damaged file from allocating gigabytes.
  static constexpr std::int32_t kMaxPosition = (1 << 24) - 1;

 private:
  void cover(std::span<const std::int32_t> set);
  std::vector<std::int32_t> table_;  // base + rank by position + 1; below base: not in the set
  std::int32_t base_ = 1;
  std::int32_t size_ = 0;  // of the set
};

/// Number of ranks in [0, limit). For sets by falling score, the ranks in B of A[:k]
/// (RankTable::ranks_of) and the limit k give |A[:k] n B[:k]|.
std::int64_t count_ranks_below(std::span<const std::int32_t> ranks, std::int32_t limit);

/// Sum of the values with a rank in [0, limit). Both have [ranks.size()] elements.
double sum_ranks_below(std::span<const float> values, std::span<const std::int32_t> ranks,
                       std::int32_t limit);

/// Checks that entries are a set. Not thread-safe.
class SetChecker {
 public:
  /// Returns set_length(set). Throws Error for the same sets as RankTable::assign.
  std::size_t check(std::span<const std::int32_t> set);

 private:
  std::vector<std::uint8_t> last_;  // by position + 1: the round that last contained it
  std::uint8_t round_ = 0;
};

/// Counts the distinct positions of many sets. Not thread-safe.
class UnionCounter {
 public:
  /// Number of distinct positions in `sets`, which holds any number of sets in a row; -1 is not
  /// counted. Throws Error for positions below -1 or above RankTable::kMaxPosition.
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
  /// Sets A and B; padding is ignored. Throws Error like RankTable.
  void assign(std::span<const std::int32_t> a, std::span<const std::int32_t> b);
  /// How many entries of `set` are in A, and how many in B. The entries may have any values.
  Counts count(std::span<const std::int32_t> set) const;

 private:
  void mark(std::span<const std::int32_t> set, std::uint64_t bit);
  std::vector<std::uint64_t> table_;  // by position: 1 in A, 2^32 in B
  std::vector<std::int32_t> members_;
};

}  // namespace blockscope
