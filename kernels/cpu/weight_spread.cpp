#include "kernels/cpu/weight_spread.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "kernels/cpu/attention_state.h"

namespace blockscope {
namespace {

constexpr float kNothingKnown = std::numeric_limits<float>::quiet_NaN();

double sum_of(const std::vector<float>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

/// Memory of this thread, kept between heads: a small model's heads take less time than malloc.
struct Scratch {
  std::vector<float> lse;      // [T], with +inf in place of -inf
  std::vector<float> factors;  // [T]
  std::vector<float> keys = std::vector<float>(kTileKeys);
  std::vector<double> before;                   // [R]
  std::vector<float> entropy[2], largest[2];    // [T], by side
  std::vector<float> all_entropy, all_largest;  // [T]
};

/// Works on one head.
class HeadSpread {
 public:
  HeadSpread(const TileKernels& kernels, int64_t queries, Scratch& scratch)
      : kernels_(kernels), queries_(static_cast<size_t>(queries)), scratch_(scratch) {
    scratch.factors.resize(queries_);
  }

  /// From now on, factors are relative to this lse [T].
  void relative_to(const float* lse) {
    scratch_.lse.assign(lse, lse + queries_);
    std::replace(scratch_.lse.begin(), scratch_.lse.end(), kNegativeInfinity,
                 std::numeric_limits<float>::infinity());  // no visible key: factor 0
  }
  /// exp(x - lse) of each query.
  const std::vector<float>& factors(const float* x) {
    kernels_.row_factors(x, scratch_.lse.data(), static_cast<int64_t>(queries_),
                         scratch_.factors.data());
    return scratch_.factors;
  }

  /// Entropy and largest weight of each query over one side (0 external, 1 internal):
  /// H = - sum over chunks of exp(max - L) * (energy + (max - L) * sum).
  void side(size_t which, const SideStates& states) {
    scratch_.entropy[which].assign(queries_, 0.0f);
    scratch_.largest[which].assign(queries_, 0.0f);
    float* const entropy = scratch_.entropy[which].data();
    float* const largest = scratch_.largest[which].data();
    relative_to(states.lse);
    for (const ChunkStates& chunk : states.chunks) {
      // No branches, so that the compiler can use vectors.
      const float* scale = factors(chunk.max).data();
      for (size_t t = 0; t < queries_; ++t) {
        const float distance = chunk.max[t] - states.lse[t];
        const float term = scale[t] * (chunk.energy[t] + distance * chunk.sum[t]);
        entropy[t] -= scale[t] == 0.0f ? 0.0f : term;
      }
      const float* weight = factors(chunk.largest).data();
      for (size_t t = 0; t < queries_; ++t) {
        largest[t] = weight[t] <= largest[t] ? largest[t] : weight[t];  // NaN wins
      }
    }
  }

  /// The same over both sides, from side(): after relative_to(lse of all keys).
  void both_sides(const SideStates* const (&sides)[2], const float* lse) {
    scratch_.all_entropy.assign(queries_, 0.0f);
    scratch_.all_largest.assign(queries_, 0.0f);
    for (size_t which = 0; which < 2; ++which) {
      const float* of_side = sides[which]->lse;
      const float* share = factors(of_side).data();
      const float* entropy = scratch_.entropy[which].data();
      const float* largest = scratch_.largest[which].data();
      float* const all_entropy = scratch_.all_entropy.data();
      float* const all_largest = scratch_.all_largest.data();
      for (size_t t = 0; t < queries_; ++t) {
        const float term = share[t] * (entropy[t] - (of_side[t] - lse[t]));
        all_entropy[t] += share[t] == 0.0f ? 0.0f : term;
        const float weight = share[t] == 0.0f ? 0.0f : share[t] * largest[t];
        all_largest[t] = weight <= all_largest[t] ? all_largest[t] : weight;
      }
    }
  }

  /// Sums over the queries the weights of the first `count` keys of a copied tile into
  /// scratch.keys, and returns the weight of all keys of its chunk up to and with this tile.
  double copied_tile(const SideStates& states, size_t copy, int64_t count) {
    const TileCopies& copies = *states.copies;
    const int64_t row = static_cast<int64_t>(copy) * copies.stride + states.first_row;
    const std::vector<float>& scale = factors(copies.max + row);
    const int64_t width = (count + kMaxLanes - 1) / kMaxLanes * kMaxLanes;
    kernels_.sum_of_rows(copies.weights + row * kTileKeys, scale.data(), std::ssize(scale),
                         kTileKeys, width, scratch_.keys.data());
    alignas(64) float lanes[kMaxLanes];
    kernels_.sum_of_rows(copies.sums + row * kMaxLanes, scale.data(), std::ssize(scale), kMaxLanes,
                         kMaxLanes, lanes);
    double until_end = 0.0;
    for (const float lane : lanes) until_end += double{lane};
    return until_end;
  }

  /// scratch.before[r]: the weight of the first ends[r] keys, summed over the queries.
  void weight_before(const SideStates& states, const std::vector<int64_t>& ends) {
    std::vector<double>& before = scratch_.before;
    before.assign(ends.size(), 0.0);
    double before_chunk = 0.0;
    size_t end = 0;
    while (end < ends.size() && ends[end] == 0) ++end;
    size_t copy = 0;
    for (const ChunkStates& chunk : states.chunks) {
      for (; copy < states.copies->tiles.size() && states.copies->tiles[copy] < chunk.end_tile;
           ++copy) {
        const int64_t first = states.copies->tiles[copy] * kTileKeys;
        const int64_t count = std::min(kTileKeys, states.num_keys - first);
        const double until_end = before_chunk + copied_tile(states, copy, count);
        const size_t first_end = end;
        double sum = 0.0;  // of the keys of the tile
        int64_t key = 0;
        for (; end < ends.size() && ends[end] <= first + count; ++end) {
          sum += sum_of_keys(key, ends[end] - first);
          key = ends[end] - first;
          before[end] = sum;
        }
        const double before_tile = until_end - sum - sum_of_keys(key, count);
        for (size_t e = first_end; e < end; ++e) before[e] += before_tile;
      }
      const std::vector<float>& scale = factors(chunk.max);
      for (size_t t = 0; t < queries_; ++t) {
        if (scale[t] != 0.0f) before_chunk += double{scale[t]} * double{chunk.sum[t]};
      }
    }
    for (; end < ends.size(); ++end) before[end] = before_chunk;
  }

 private:
  /// The sum of scratch.keys [begin, end), in four parts: one chain of additions would be slow.
  double sum_of_keys(int64_t begin, int64_t end) const {
    const float* keys = scratch_.keys.data();
    double parts[4] = {};
    for (; begin + 4 <= end; begin += 4) {
      for (int64_t i = 0; i < 4; ++i) parts[i] += double{keys[begin + i]};
    }
    for (; begin < end; ++begin) parts[0] += double{keys[begin]};
    return (parts[0] + parts[1]) + (parts[2] + parts[3]);
  }

  const TileKernels& kernels_;
  const size_t queries_;
  Scratch& scratch_;
};

}  // namespace

SpreadFiller::SpreadFiller(const TileKernels& kernels, const AttentionSizes& sizes,
                           int64_t internal_keys, WeightSpread& spread)
    : kernels_(kernels), sizes_(sizes), internal_keys_(internal_keys), spread_(spread) {
  const auto ranges = spread.ends.empty() ? int64_t{0} : std::ssize(spread.ends.front());
  const auto heads = [&](int64_t width) {
    return at::empty({sizes.sequences, sizes.heads, width}, at::kFloat);
  };
  spread.entropy = heads(3);
  spread.largest = heads(3);
  spread.range = heads(ranges);
  spread.key = heads(internal_keys);
  spread.offset = heads(std::max<int64_t>(2 * internal_keys - 1, 0));
  entropy_ = spread.entropy.mutable_data_ptr<float>();
  largest_ = spread.largest.mutable_data_ptr<float>();
  range_ = spread.range.mutable_data_ptr<float>();
  key_ = spread.key.mutable_data_ptr<float>();
  offset_ = spread.offset.mutable_data_ptr<float>();
}

std::vector<int64_t> SpreadFiller::ends_among(int64_t sequence, const int32_t* positions,
                                              int64_t length) const {
  std::vector<int64_t> ends = spread_.ends[static_cast<size_t>(sequence)];
  if (positions == nullptr) return ends;
  for (int64_t& end : ends) {
    end = std::lower_bound(positions, positions + length, end) - positions;
  }
  return ends;
}

std::vector<int64_t> SpreadFiller::tiles_of(const std::vector<int64_t>& ends, int64_t length) {
  std::vector<int64_t> tiles;
  for (const int64_t end : ends) {
    if (end <= 0 || end >= length) continue;
    const int64_t tile = (end - 1) / kTileKeys;
    if (tiles.empty() || tiles.back() != tile) tiles.push_back(tile);
  }
  return tiles;
}

std::vector<int64_t> SpreadFiller::internal_tiles() const {
  std::vector<int64_t> tiles(static_cast<size_t>((internal_keys_ + kTileKeys - 1) / kTileKeys));
  std::iota(tiles.begin(), tiles.end(), int64_t{0});
  return tiles;
}

void SpreadFiller::fill(int64_t sequence, int64_t head, const SideStates& external,
                        const std::vector<int64_t>& ends, const SideStates& internal,
                        const float* lse) const {
  thread_local Scratch scratch;
  const int64_t num = sizes_.queries;
  const auto queries = static_cast<double>(num);
  const int64_t at = sequence * sizes_.heads + head;
  float* const entropy = entropy_ + at * 3;
  float* const largest = largest_ + at * 3;
  float* const range = range_ + at * std::ssize(ends);
  float* const key = key_ + at * internal_keys_;
  const int64_t num_offsets = std::max<int64_t>(2 * internal_keys_ - 1, 0);
  float* const offset = offset_ + at * num_offsets;
  const auto mean = [queries](const std::vector<float>& values) {
    return static_cast<float>(sum_of(values) / queries);
  };
  HeadSpread spread(kernels_, num, scratch);
  spread.side(1, internal);
  entropy[1] = mean(scratch.entropy[1]);
  largest[1] = mean(scratch.largest[1]);
  if (external.lse == nullptr) {
    std::fill_n(range, ends.size(), kNothingKnown);
    std::fill_n(key, internal_keys_, kNothingKnown);
    std::fill_n(offset, num_offsets, kNothingKnown);
    entropy[0] = entropy[2] = largest[0] = largest[2] = kNothingKnown;
    return;
  }
  spread.side(0, external);
  entropy[0] = mean(scratch.entropy[0]);
  largest[0] = mean(scratch.largest[0]);
  spread.relative_to(lse);
  spread.both_sides({&external, &internal}, lse);
  entropy[2] = mean(scratch.all_entropy);
  largest[2] = mean(scratch.all_largest);

  spread.weight_before(external, ends);
  double last = 0.0;
  for (size_t r = 0; r < ends.size(); ++r) {
    const double weight = scratch.before[r] - last;  // as a difference, perhaps a little below 0
    range[r] = static_cast<float>(std::isnan(weight) ? weight : std::max(weight, 0.0) / queries);
    last = scratch.before[r];
  }

  std::fill_n(offset, num_offsets, 0.0f);
  for (size_t copy = 0; copy < internal.copies->tiles.size(); ++copy) {
    const int64_t first = static_cast<int64_t>(copy) * kTileKeys;
    const int64_t count = std::min(kTileKeys, internal_keys_ - first);
    spread.copied_tile(internal, copy, count);
    const auto share = static_cast<float>(1.0 / queries);
    for (int64_t j = 0; j < count; ++j)
      key[first + j] = scratch.keys[static_cast<size_t>(j)] * share;
    const int64_t row = static_cast<int64_t>(copy) * internal.copies->stride + internal.first_row;
    for (int64_t t = 0; t < num; ++t) {
      const int64_t place = spread_.places.empty() ? t : spread_.places[static_cast<size_t>(t)];
      const float* weights = internal.copies->weights + (row + t) * kTileKeys;
      float* const sums = offset + internal_keys_ - 1 - place + first;
      const float factor = scratch.factors[static_cast<size_t>(t)] * share;
      for (int64_t j = 0; j < count; ++j) sums[j] += weights[j] * factor;
    }
  }
}

}  // namespace blockscope
