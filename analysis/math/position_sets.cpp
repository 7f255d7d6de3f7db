#include "analysis/math/position_sets.h"

#include <algorithm>
#include <limits>
#include <string>

#include "analysis/math/set_loops.h"
#include "decode_record/base/error.h"

namespace blockscope {
namespace {

// -1 (padding) becomes 0; anything below becomes too large.
std::uint32_t shifted(std::int32_t position) { return static_cast<std::uint32_t>(position) + 1U; }

/// Between the largest position + 1 and twice that value; 0 if all is padding. Checks every entry.
std::size_t checked_extent(std::span<const std::int32_t> set) {
  // OR all bits together, which costs a third of finding the largest.
  const std::uint32_t bits = best_set_loops().bits(set.data(), set.size());
  constexpr auto kLimit = static_cast<std::uint32_t>(RankTable::kMaxPosition) + 1U;
  if (bits < kLimit) return bits;
  std::uint32_t largest = 0;
  for (const std::int32_t p : set) largest = std::max(largest, shifted(p));
  if (largest > kLimit) {
    throw Error("expected positions from -1 (padding) to " +
                std::to_string(RankTable::kMaxPosition) + ", got " +
                std::to_string(static_cast<std::int32_t>(largest - 1U)));
  }
  return largest;
}

[[noreturn]] void throw_repeated(std::int32_t position) {
  throw Error("expected distinct positions in a set, got " + std::to_string(position) + " twice");
}

}  // namespace

std::size_t set_length(std::span<const std::int32_t> set) {
  if (best_set_loops().padding(set.data(), set.size()) == 0) return set.size();
  return static_cast<std::size_t>(std::find(set.begin(), set.end(), -1) - set.begin());
}

void RankTable::cover(std::span<const std::int32_t> set) {
  const std::size_t extent = checked_extent(set) + 1;
  if (table_.size() < extent) table_.resize(extent, 0);
}

void RankTable::assign(std::span<const std::int32_t> set) {
  cover(set);
  const auto size = static_cast<std::int32_t>(set.size());
  if (size_ + size > std::numeric_limits<std::int32_t>::max() - base_) {
    std::ranges::fill(table_, 0);
    base_ = 1;
    size_ = 0;
  }
  base_ += size_;  // smaller entries belong to earlier sets, so nothing must be cleared
  size_ = size;
  std::int32_t entry = base_;
  for (const std::int32_t p : set) {
    if (p >= 0) {
      std::int32_t& at = table_[shifted(p)];
      if (at >= base_) throw_repeated(p);
      at = entry;
    }
    ++entry;
  }
}

void RankTable::ranks_of(std::span<const std::int32_t> set, std::span<std::int32_t> out) {
  cover(set);
  best_set_loops().ranks(table_.data(), base_, set.data(), set.size(), out.data());
}

std::int64_t count_ranks_below(std::span<const std::int32_t> ranks, std::int32_t limit) {
  return static_cast<std::int64_t>(best_set_loops().count_below(ranks.data(), ranks.size(), limit));
}

double sum_ranks_below(std::span<const float> values, std::span<const std::int32_t> ranks,
                       std::int32_t limit) {
  return best_set_loops().sum_below(values.data(), ranks.data(), ranks.size(), limit);
}

std::size_t SetChecker::check(std::span<const std::int32_t> set) {
  const std::size_t extent = checked_extent(set) + 1;
  if (last_.size() < extent) last_.resize(extent, 0);
  if (round_ == std::numeric_limits<std::uint8_t>::max()) {
    std::ranges::fill(last_, std::uint8_t{0});
    round_ = 0;
  }
  const std::uint8_t round = ++round_;
  std::uint8_t* const last = last_.data();
  bool repeated = false;  // searched for only if needed: a branch costs more than the rest
  const std::size_t length = set_length(set);
  for (const std::int32_t p : set.first(length)) {
    std::uint8_t& at = last[shifted(p)];
    repeated |= at == round;
    at = round;
  }
  for (const std::int32_t p : set.subspan(length)) {
    std::uint8_t& at = last[shifted(p)];
    repeated |= p >= 0 && at == round;
    at = round;
  }
  if (!repeated) return length;
  std::vector<std::int32_t> sorted(set.begin(), set.end());
  std::ranges::sort(sorted);
  throw_repeated(*std::adjacent_find(std::ranges::upper_bound(sorted, -1), sorted.end()));
}

std::int64_t UnionCounter::count(std::span<const std::int32_t> sets) {
  const std::size_t extent = checked_extent(sets) + 1;
  if (seen_.size() < extent) seen_.resize(extent, 0);
  // Store without reading back, then sweep the table once. That is faster than counting on the way,
  // unless the table is much longer than the list.
  std::uint8_t* seen = seen_.data();
  for (const std::int32_t p : sets) seen[shifted(p)] = 1;
  seen[0] = 0;
  std::int64_t distinct = 0;
  if (extent <= 8 * sets.size()) {
    for (std::size_t begin = 0; begin < extent; begin += 128) {
      const std::size_t end = std::min(extent, begin + 128);
      std::uint8_t part = 0;  // at most 128: fits, and vectorises without widening
      for (std::size_t i = begin; i < end; ++i) part = static_cast<std::uint8_t>(part + seen[i]);
      distinct += part;
    }
    std::fill_n(seen, extent, std::uint8_t{0});
    return distinct;
  }
  for (const std::int32_t p : sets) {
    distinct += seen[shifted(p)];
    seen[shifted(p)] = 0;
  }
  return distinct;
}

void OverlapCounter::mark(std::span<const std::int32_t> set, std::uint64_t bit) {
  const std::size_t extent = checked_extent(set);
  if (table_.size() < extent) table_.resize(extent, 0);
  for (const std::int32_t p : set) {
    if (p < 0) continue;
    std::uint64_t& entry = table_[static_cast<std::size_t>(p)];
    if ((entry & bit) != 0) throw_repeated(p);
    entry |= bit;
    members_.push_back(p);
  }
}

void OverlapCounter::assign(std::span<const std::int32_t> a, std::span<const std::int32_t> b) {
  for (const std::int32_t p : members_) table_[static_cast<std::size_t>(p)] = 0;
  members_.clear();
  mark(a, 1);
  mark(b, std::uint64_t{1} << 32);
}

OverlapCounter::Counts OverlapCounter::count(std::span<const std::int32_t> set) const {
  std::uint64_t sum = 0;
  const std::size_t size = table_.size();
  const std::uint64_t* table = table_.data();
  for (const std::int32_t p : set) {
    const auto index = static_cast<std::uint32_t>(p);
    sum += index < size ? table[index] : 0;
  }
  return {static_cast<std::int64_t>(sum & 0xffffffffU), static_cast<std::int64_t>(sum >> 32)};
}

}  // namespace blockscope
