// Compares two sets of keys of one KV head, key by key: a step's chosen set and the exact set.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace blockscope {

enum class KeyMark : std::uint8_t {
  both,        ///< chosen, and among the exact set's first k' keys: a hit
  exact_only,  ///< among those k' keys, but not chosen: a miss
  chosen_only  ///< chosen, but not among those k' keys: extra
};

struct ComparedKey {
  std::int32_t position = 0;
  std::int32_t chosen_rank = -1;  ///< from 0; -1: not in the chosen set
  std::int32_t exact_rank = -1;   ///< in the whole exact set, so it may be >= k'; -1: not in it
  KeyMark mark = KeyMark::both;
  bool operator==(const ComparedKey&) const = default;
};

struct SetComparison {
  std::size_t compared = 0;       ///< k'
  std::vector<ComparedKey> keys;  ///< by rising position; each has a mark
  std::int64_t hits = 0, misses = 0, extra = 0;
  /// |S n S*[:k']| / k' (MAGE, eq. 1, with the block's own set); NaN: k' = 0.
  double accuracy() const;
};

/// Both sets are by falling score; padding (-1) is ignored. k' = `compared`, but at most |exact|.
/// Throws Error for positions below -1, above RankTable::kMaxPosition, or twice in a set.
SetComparison compare_sets(std::span<const std::int32_t> chosen,
                           std::span<const std::int32_t> exact, std::size_t compared);

}  // namespace blockscope
