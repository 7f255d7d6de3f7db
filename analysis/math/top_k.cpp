// A row takes one sweep and a sort of few candidates: a sample of the scores gives a threshold that
// somewhat more than k scores reach; the sweep collects those in the order of their positions; a
// stable radix sort by falling score then also puts ties in that order. When the sample misjudged
// the row, every score is a candidate: slower, never wrong.
//
// Of a short row, where a sample says little and costs much, all scores are counted in buckets: the
// first buckets that hold k scores are the candidates, and already sorted but for each bucket.
#include "analysis/math/top_k.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <thread>
#include <utility>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "decode_record/error.h"

namespace blockscope {
namespace {

constexpr std::size_t kLargestSample = 512;
constexpr std::size_t kSmallestStride = 8;
// Counting more buckets than candidates costs more than one pass fewer saves.
constexpr std::size_t kFewCandidates = 64;
constexpr std::size_t kManyCandidates = 4096;
constexpr std::size_t kShortRow = 4096;
constexpr std::size_t kShortRowBits = 9;    // of a bucket's number
constexpr std::size_t kFewInBuckets = 256;  // then few are in a wrong place
constexpr std::size_t kBuckets = std::size_t{1} << 11U;

struct Candidate {
  std::uint32_t key;  // ascending key = falling score
  std::int32_t position;
};

struct Scratch {
  std::vector<float> sample;
  std::vector<std::int32_t> keys;  // of a short row, ascending key = falling score
  std::vector<Candidate> candidates, sorted;
  std::array<std::uint32_t, kBuckets> count{};
};

std::uint32_t falling_key(float score) {
  const auto bits = std::bit_cast<std::uint32_t>(score + 0.0F);  // -0 + 0 = +0: they tie
  return (bits >> 31U) != 0 ? bits : ~(bits | 0x80000000U);
}

/// A score that probably more than k, and not many more, of the row's n scores reach.
float sampled_threshold(std::span<const float> row, std::size_t k, Scratch& scratch) {
  const std::size_t stride = std::max(row.size() / kLargestSample, kSmallestStride);
  scratch.sample.clear();
  for (std::size_t i = stride / 2; i < row.size(); i += stride) {
    if (!std::isnan(row[i])) scratch.sample.push_back(row[i]);
  }
  const double expected = static_cast<double>(k) / static_cast<double>(stride);
  const auto rank = static_cast<std::size_t>(expected + 3.0 * std::sqrt(expected) + 2.0);
  if (rank >= scratch.sample.size()) return -std::numeric_limits<float>::infinity();
  const auto nth = scratch.sample.begin() + static_cast<std::ptrdiff_t>(rank);
  std::nth_element(scratch.sample.begin(), nth, scratch.sample.end(), std::greater<>());
  return *nth;
}

/// Writes the positions whose score reaches the threshold to `out` [row.size()], ascending; returns
/// their number. NaN reaches nothing.
std::size_t collect(std::span<const float> row, float threshold, Candidate* out) {
  std::size_t found = 0;
  std::size_t i = 0;
#if defined(__SSE2__)
  const __m128 limit = _mm_set1_ps(threshold);
  const auto reach = [&](std::size_t at) {
    return static_cast<unsigned>(_mm_movemask_ps(_mm_cmpge_ps(_mm_loadu_ps(&row[at]), limit)));
  };
  for (; i + 16 <= row.size(); i += 16) {
    unsigned mask = reach(i) | (reach(i + 4) << 4U) | (reach(i + 8) << 8U) | (reach(i + 12) << 12U);
    for (; mask != 0; mask &= mask - 1) {
      const std::size_t at = i + static_cast<std::size_t>(std::countr_zero(mask));
      out[found++] = {falling_key(row[at]), static_cast<std::int32_t>(at)};
    }
  }
#endif
  for (; i < row.size(); ++i) {
    if (row[i] >= threshold) out[found++] = {falling_key(row[i]), static_cast<std::int32_t>(i)};
  }
  return found;
}

std::size_t collect_all(std::span<const float> row, Candidate* out) {
  std::size_t found = 0;
  for (std::size_t i = 0; i < row.size(); ++i) {
    out[found] = {falling_key(row[i]), static_cast<std::int32_t>(i)};
    found += row[i] == row[i] ? 1U : 0U;  // NaN is overwritten by the next
  }
  return found;
}

struct KeyRange {
  std::int32_t low = std::numeric_limits<std::int32_t>::max();
  std::int32_t high = std::numeric_limits<std::int32_t>::min();
  std::int32_t not_a_number = 0;
};

/// falling_key() of every score, with the top bit flipped because compilers vectorise the least and
/// largest of signed numbers on any processor. [row.size()]
KeyRange signed_keys(std::span<const float> row, std::int32_t* keys) {
  KeyRange range;
  for (std::size_t i = 0; i < row.size(); ++i) {
    const auto bits = std::bit_cast<std::int32_t>(row[i] + 0.0F);
    keys[i] = ~(bits ^ ((bits >> 31) & std::numeric_limits<std::int32_t>::max()));
    range.low = std::min(range.low, keys[i]);
    range.high = std::max(range.high, keys[i]);
    range.not_a_number += row[i] != row[i] ? 1 : 0;
  }
  return range;
}

/// Calls `take(i)` for every i with keys[i] <= limit, ascending.
template <typename Take>
void for_each_up_to(std::span<const std::int32_t> keys, std::int32_t limit, const Take& take) {
  std::size_t i = 0;
#if defined(__SSE2__)
  const __m128i limits = _mm_set1_epi32(limit);
  const auto beyond = [&](std::size_t at) {
    return _mm_cmpgt_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(&keys[at])), limits);
  };
  for (; i + 16 <= keys.size(); i += 16) {
    const __m128i words = _mm_packs_epi16(_mm_packs_epi32(beyond(i), beyond(i + 4)),
                                          _mm_packs_epi32(beyond(i + 8), beyond(i + 12)));
    unsigned mask = static_cast<unsigned>(_mm_movemask_epi8(words)) ^ 0xFFFFU;
    for (; mask != 0; mask &= mask - 1) {
      take(i + static_cast<std::size_t>(std::countr_zero(mask)));
    }
  }
#endif
  for (; i < keys.size(); ++i) {
    if (keys[i] <= limit) take(i);
  }
}

/// Of a row without NaN: at least k candidates (or all of the row), by bucket and then by position.
std::size_t collect_buckets(std::size_t k, const KeyRange& range, Scratch& scratch) {
  const auto low = static_cast<std::uint32_t>(range.low);
  const auto width =
      static_cast<std::size_t>(std::bit_width(static_cast<std::uint32_t>(range.high) - low));
  const std::size_t shift = width > kShortRowBits ? width - kShortRowBits : 0;
  const auto bucket_of = [&](std::int32_t key) {
    return (static_cast<std::uint32_t>(key) - low) >> shift;
  };
  constexpr std::size_t kShortRowBuckets = std::size_t{1} << kShortRowBits;
  std::fill_n(scratch.count.begin(), kShortRowBuckets, 0U);
  for (const std::int32_t key : scratch.keys) ++scratch.count[bucket_of(key)];
  std::uint32_t found = 0;
  std::uint32_t last = 0;
  for (std::uint32_t bucket = 0; bucket < kShortRowBuckets && found < k; ++bucket) {
    const std::uint32_t size = std::exchange(scratch.count[bucket], found);
    found += size;
    last = bucket;
  }
  const std::int64_t end = range.low + (static_cast<std::int64_t>(last + 1) << shift);
  const auto limit = static_cast<std::int32_t>(std::min<std::int64_t>(end - 1, range.high));
  for_each_up_to(scratch.keys, limit, [&](std::size_t at) {
    const std::int32_t key = scratch.keys[at];
    scratch.candidates[scratch.count[bucket_of(key)]++] = {
        static_cast<std::uint32_t>(key) ^ 0x80000000U, static_cast<std::int32_t>(at)};
  });
  return found;
}

/// Stable, and fast where few are in a wrong place.
void insertion_sort(std::span<Candidate> candidates) {
  for (std::size_t i = 1; i < candidates.size(); ++i) {
    const Candidate moved = candidates[i];
    std::size_t at = i;
    for (; at > 0 && candidates[at - 1].key > moved.key; --at) candidates[at] = candidates[at - 1];
    candidates[at] = moved;
  }
}

/// Sorts `size` candidates, of which those of one key come ascending by position, by key and then
/// by position. Returns where the sorted ones are.
const Candidate* sort_candidates(Scratch& scratch, std::size_t size) {
  Candidate* from = scratch.candidates.data();
  Candidate* to = scratch.sorted.data();
  if (size < kFewCandidates) {
    std::sort(from, from + size, [](const Candidate& a, const Candidate& b) {
      return a.key != b.key ? a.key < b.key : a.position < b.position;
    });
    return from;
  }
  std::uint32_t low = std::numeric_limits<std::uint32_t>::max();
  std::uint32_t high = 0;
  for (std::size_t i = 0; i < size; ++i) {
    low = std::min(low, from[i].key);
    high = std::max(high, from[i].key);
  }
  const auto width = static_cast<std::size_t>(std::bit_width(high - low));
  const std::size_t digit = size < kManyCandidates ? 9 : 11;
  const std::size_t passes = (width + digit - 1) / digit;
  if (passes == 0) return from;
  const std::size_t bits = (width + passes - 1) / passes;
  const std::uint32_t mask = (1U << bits) - 1U;
  for (std::size_t shift = 0; shift < width; shift += bits) {
    std::fill_n(scratch.count.begin(), mask + 1U, 0U);
    for (std::size_t i = 0; i < size; ++i) ++scratch.count[((from[i].key - low) >> shift) & mask];
    std::uint32_t begin = 0;
    for (std::uint32_t bucket = 0; bucket <= mask; ++bucket) {
      begin += std::exchange(scratch.count[bucket], begin);
    }
    for (std::size_t i = 0; i < size; ++i) {
      to[scratch.count[((from[i].key - low) >> shift) & mask]++] = from[i];
    }
    std::swap(from, to);
  }
  return from;
}

std::int32_t count_nan(std::span<const float> row) {
  std::int32_t count = 0;
  for (const float x : row) count += x != x ? 1 : 0;
  return count;
}

/// Returns the number of NaN.
std::int64_t row_top_k(std::span<const float> row, std::size_t k, Scratch& scratch,
                       std::span<std::int32_t> out) {
  scratch.candidates.resize(row.size());
  scratch.sorted.resize(row.size());
  std::size_t found = 0;
  std::int64_t not_a_number = 0;
  const Candidate* sorted = scratch.candidates.data();
  if (!row.empty() && row.size() <= kShortRow) {
    scratch.keys.resize(row.size());
    const KeyRange range = signed_keys(row, scratch.keys.data());
    not_a_number = range.not_a_number;
    if (not_a_number == 0) found = collect_buckets(k, range, scratch);
  } else {
    not_a_number = count_nan(row);
    const float threshold = sampled_threshold(row, k, scratch);
    if (threshold > -std::numeric_limits<float>::infinity()) {
      found = collect(row, threshold, scratch.candidates.data());
    }
  }
  const bool in_buckets = found > 0 && row.size() <= kShortRow;
  if (!in_buckets && found < k) found = collect_all(row, scratch.candidates.data());
  if (in_buckets && found < kFewInBuckets) {
    insertion_sort(std::span(scratch.candidates).first(found));
  } else {
    sorted = sort_candidates(scratch, found);
  }
  found = std::min(k, found);
  for (std::size_t i = 0; i < found; ++i) out[i] = sorted[i].position;
  std::fill(out.begin() + static_cast<std::ptrdiff_t>(found), out.end(), -1);
  return not_a_number;
}

void check_arguments(std::size_t size, std::int64_t rows, std::int64_t n, std::int64_t k) {
  const bool shape = rows >= 0 && n >= 0 && n <= std::numeric_limits<std::int32_t>::max() &&
                     (n == 0 || rows <= std::numeric_limits<std::int64_t>::max() / n) &&
                     static_cast<std::uint64_t>(rows) * static_cast<std::uint64_t>(n) == size;
  if (!shape) {
    throw UsageError("top_k: expected scores [" + std::to_string(rows) + ", " + std::to_string(n) +
                     "] with n below 2^31, got " + std::to_string(size) + " scores");
  }
  if (k < 1 || k > std::numeric_limits<std::int32_t>::max()) {
    throw UsageError("top_k: expected k from 1 to 2^31 - 1, got " + std::to_string(k));
  }
}

}  // namespace

TopKSets top_k(std::span<const float> scores, std::int64_t rows, std::int64_t n, std::int64_t k,
               std::size_t threads) {
  check_arguments(scores.size(), rows, n, k);
  const auto width = static_cast<std::size_t>(n);
  const auto kept = static_cast<std::size_t>(k);
  const auto num_rows = static_cast<std::size_t>(rows);
  TopKSets result{rows, k, std::vector<std::int32_t>(num_rows * kept), 0};
  if (threads == 0) threads = std::max(1U, std::thread::hardware_concurrency());
  threads = std::clamp<std::size_t>(threads, 1, std::max<std::size_t>(1, num_rows));
  std::vector<std::int64_t> not_a_number(threads, 0);
  const auto work = [&](std::size_t worker) {
    Scratch scratch;
    for (std::size_t r = worker; r < num_rows; r += threads) {
      const std::span<const float> row = scores.subspan(r * width, width);
      not_a_number[worker] +=
          row_top_k(row, kept, scratch, std::span(result.index).subspan(r * kept, kept));
    }
  };
  {
    std::vector<std::jthread> others;
    for (std::size_t t = 1; t < threads; ++t) others.emplace_back(work, t);
    work(0);
  }
  for (const std::int64_t count : not_a_number) result.not_a_number += count;
  return result;
}

}  // namespace blockscope
