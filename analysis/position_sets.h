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

  /// Rank in the set, from 0; -1: not in it. Any value may be asked for.
  std::int32_t rank(std::int32_t position) const {
    const auto p = static_cast<std::uint32_t>(position);
    const std::uint32_t entry = p < table_.size() ? table_[p] : 0;
    return entry >= base_ ? static_cast<std::int32_t>(entry - base_) : -1;
  }

  /// rank() of each member of `set`. [set.size()]
  void ranks_of(std::span<const std::int32_t> set, std::span<std::int32_t> out) const;

  /// No model has a longer context; keeps a damaged file from asking for gigabytes.
  static constexpr std::int32_t kMaxPosition = (1 << 26) - 1;

 private:
  std::vector<std::uint32_t> table_;  // base + rank by position; below base: not in the set
  std::uint32_t base_ = 1;
  std::uint32_t size_ = 0;  // of the set
};

/// Ranks in [0, limit). With the ranks in B of A[:k] (RankTable::ranks_of) and the limit k it is
/// |A[:k] n B[:k]|, for sets by falling score.
std::int64_t count_ranks_below(std::span<const std::int32_t> ranks, std::int32_t limit);

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
