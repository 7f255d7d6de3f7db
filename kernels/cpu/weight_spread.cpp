#include "kernels/cpu/weight_spread.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>

#include "kernels/cpu/attention_state.h"

namespace blockscope {
namespace {

constexpr float kNothingKnown = std::numeric_limits<float>::quiet_NaN();

/// exp(x - lse) for each query. An lse of -inf gives 0: no key is visible.
class Factors {
 public:
  Factors(const TileKernels& kernels, const float* lse, int64_t num) : kernels_(kernels) {
    lse_.assign(lse, lse + num);
    std::replace(lse_.begin(), lse_.end(), kNegativeInfinity,
                 std::numeric_limits<float>::infinity());
    values_.resize(lse_.size());
  }
  const std::vector<float>& of(const float* x) {
    kernels_.row_factors(x, lse_.data(), std::ssize(lse_), values_.data());
    return values_;
  }

 private:
  const TileKernels& kernels_;
  std::vector<float> lse_;
  std::vector<float> values_;
};

/// Entropy and largest weight of each query's distribution over one side.
struct SideSpread {
  std::vector<double> entropy;
  std::vector<double> largest;
};

/// H = - sum over chunks of exp(max - L) * (energy + (max - L) * sum).
SideSpread side_spread(const TileKernels& kernels, const SideStates& side, int64_t num) {
  SideSpread spread;
  spread.entropy.assign(static_cast<size_t>(num), 0.0);
  spread.largest.assign(static_cast<size_t>(num), 0.0);
  Factors factors(kernels, side.lse, num);
  for (const ChunkStates& chunk : side.chunks) {
    const std::vector<float>& scale = factors.of(chunk.max);
    for (size_t t = 0; t < scale.size(); ++t) {
      if (scale[t] == 0.0f) continue;
      const double distance = double{chunk.max[t]} - double{side.lse[t]};
      spread.entropy[t] -=
          double{scale[t]} * (double{chunk.energy[t]} + distance * double{chunk.sum[t]});
    }
    const std::vector<float>& largest = factors.of(chunk.largest);
    for (size_t t = 0; t < largest.size(); ++t) {
      const double weight = largest[t];
      if (!(weight <= spread.largest[t])) spread.largest[t] = weight;  // NaN wins
    }
  }
  return spread;
}

/// The largest of two values and one more than it, with -inf for nothing: log(exp(a) + exp(b)).
float log_add(float a, float b) {
  const float most = a > b ? a : b;
  if (std::isnan(a) || std::isnan(b)) return kNothingKnown;
  if (most == kNegativeInfinity) return most;
  return most + std::log1p(std::exp(-std::abs(a - b)));
}

double mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

/// The sum over the queries of the weights of a copied tile's keys.
struct CopiedTile {
  std::vector<float> keys;  // [kTileKeys], of the first `count`
  double until_end = 0.0;   // the weight of all keys of its chunk up to and with this tile
};

CopiedTile copied_tile(const TileKernels& kernels, const SideStates& side, size_t copy,
                       int64_t count, Factors& factors) {
  const TileCopies& copies = *side.copies;
  const int64_t row = static_cast<int64_t>(copy) * copies.stride + side.first_row;
  const std::vector<float>& scale = factors.of(copies.max + row);
  const int64_t width = (count + kMaxLanes - 1) / kMaxLanes * kMaxLanes;
  CopiedTile tile;
  tile.keys.resize(static_cast<size_t>(kTileKeys));
  kernels.sum_of_rows(copies.weights + row * kTileKeys, scale.data(), std::ssize(scale), kTileKeys,
                      width, tile.keys.data());
  tile.keys.resize(static_cast<size_t>(count));
  alignas(64) float lanes[kMaxLanes];
  kernels.sum_of_rows(copies.sums + row * kMaxLanes, scale.data(), std::ssize(scale), kMaxLanes,
                      kMaxLanes, lanes);
  for (const float lane : lanes) tile.until_end += double{lane};
  return tile;
}

/// The weight of the first ends[r] keys, for each range.
std::vector<double> weight_before(const TileKernels& kernels, const SideStates& side,
                                  const std::vector<int64_t>& ends, const float* lse, int64_t num) {
  std::vector<double> weight(ends.size());
  Factors factors(kernels, lse, num);
  double before_chunk = 0.0;
  size_t end = 0;
  while (end < ends.size() && ends[end] == 0) ++end;
  size_t copy = 0;
  for (const ChunkStates& chunk : side.chunks) {
    for (; copy < side.copies->tiles.size() && side.copies->tiles[copy] < chunk.end_tile; ++copy) {
      const int64_t first = side.copies->tiles[copy] * kTileKeys;
      const int64_t count = std::min(kTileKeys, side.num_keys - first);
      const CopiedTile tile = copied_tile(kernels, side, copy, count, factors);
      double left = 0.0;
      for (const float key : tile.keys) left += double{key};
      double sum = before_chunk + tile.until_end - left;
      int64_t key = 0;
      for (; end < ends.size() && ends[end] <= first + count; ++end) {
        for (; first + key < ends[end]; ++key) sum += double{tile.keys[static_cast<size_t>(key)]};
        weight[end] = sum;
      }
    }
    const std::vector<float>& scale = factors.of(chunk.max);
    for (size_t t = 0; t < scale.size(); ++t) {
      if (scale[t] != 0.0f) before_chunk += double{scale[t]} * double{chunk.sum[t]};
    }
  }
  for (; end < ends.size(); ++end) weight[end] = before_chunk;
  return weight;
}

}  // namespace

void check_spread(const char* op, const WeightSpread& spread, const AttentionSizes& sizes,
                  const std::vector<int64_t>& lengths, int64_t internal_keys) {
  TORCH_CHECK(std::ssize(spread.ends) == sizes.sequences, op, ": spread.ends: expected ",
              sizes.sequences, " sequences, got ", spread.ends.size());
  for (size_t s = 0; s < spread.ends.size(); ++s) {
    const std::vector<int64_t>& ends = spread.ends[s];
    TORCH_CHECK(ends.size() == spread.ends.front().size() &&
                    std::is_sorted(ends.begin(), ends.end()) &&
                    (ends.empty() || (ends.front() >= 0 && ends.back() <= lengths[s])),
                op, ": spread.ends[", s, "]: expected ", spread.ends.front().size(),
                " ends that never fall, from 0 to ext_len ", lengths[s]);
  }
  const bool all = spread.places.empty();
  TORCH_CHECK(all ? sizes.queries == internal_keys || internal_keys == 0
                  : std::ssize(spread.places) == sizes.queries,
              op, ": spread.places: expected ", sizes.queries, " places, got ",
              spread.places.size());
  for (const int64_t place : spread.places) {
    TORCH_CHECK(place >= 0 && place < internal_keys, op, ": spread.places: expected places below ",
                internal_keys, ", got ", place);
  }
}

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
                        const std::vector<int64_t>& ends, const SideStates& internal) const {
  const int64_t num = sizes_.queries;
  const int64_t at = sequence * sizes_.heads + head;
  const auto entries = [at](const at::Tensor& values) {
    return std::span(values.mutable_data_ptr<float>() + at * values.size(2),
                     static_cast<size_t>(values.size(2)));
  };
  const std::span<float> entropy = entries(spread_.entropy);
  const std::span<float> largest = entries(spread_.largest);
  const std::span<float> range = entries(spread_.range);
  const std::span<float> key = entries(spread_.key);
  const std::span<float> offset = entries(spread_.offset);
  const SideSpread inside = side_spread(kernels_, internal, num);
  entropy[1] = static_cast<float>(mean(inside.entropy));
  largest[1] = static_cast<float>(mean(inside.largest));
  if (external.lse == nullptr) {
    for (const std::span<float> values : {range, key, offset}) {
      std::ranges::fill(values, kNothingKnown);
    }
    entropy[0] = entropy[2] = largest[0] = largest[2] = kNothingKnown;
    return;
  }
  const SideSpread outside = side_spread(kernels_, external, num);
  entropy[0] = static_cast<float>(mean(outside.entropy));
  largest[0] = static_cast<float>(mean(outside.largest));

  std::vector<float> lse(static_cast<size_t>(num));
  for (size_t t = 0; t < lse.size(); ++t) lse[t] = log_add(external.lse[t], internal.lse[t]);
  Factors factors(kernels_, lse.data(), num);
  std::vector<double> entropies(lse.size());
  std::vector<double> most(lse.size());
  const auto add_side = [&](const SideStates& side, const SideSpread& of_side) {
    const std::vector<float>& share = factors.of(side.lse);
    for (size_t t = 0; t < lse.size(); ++t) {
      if (share[t] == 0.0f) continue;
      const double p = share[t];
      entropies[t] += p * (of_side.entropy[t] - (double{side.lse[t]} - double{lse[t]}));
      const double weight = p * of_side.largest[t];
      if (!(weight <= most[t])) most[t] = weight;
    }
  };
  add_side(external, outside);
  add_side(internal, inside);
  entropy[2] = static_cast<float>(mean(entropies));
  largest[2] = static_cast<float>(mean(most));

  const auto queries = static_cast<double>(num);
  const std::vector<double> before = weight_before(kernels_, external, ends, lse.data(), num);
  double last = 0.0;
  for (size_t r = 0; r < before.size(); ++r) {
    const double weight = before[r] - last;  // a difference of sums may be a little below 0
    range[r] = static_cast<float>(std::isnan(weight) ? weight : std::max(weight, 0.0) / queries);
    last = before[r];
  }

  std::ranges::fill(offset, 0.0f);
  for (size_t copy = 0; copy < internal.copies->tiles.size(); ++copy) {
    const int64_t first = static_cast<int64_t>(copy) * kTileKeys;
    const int64_t count = std::min(kTileKeys, internal_keys_ - first);
    const CopiedTile tile = copied_tile(kernels_, internal, copy, count, factors);
    for (int64_t j = 0; j < count; ++j) {
      key[static_cast<size_t>(first + j)] =
          static_cast<float>(double{tile.keys[static_cast<size_t>(j)]} / queries);
    }
    const int64_t row = static_cast<int64_t>(copy) * internal.copies->stride + internal.first_row;
    const std::vector<float>& scale = factors.of(internal.copies->max + row);
    for (int64_t t = 0; t < num; ++t) {
      const int64_t place = spread_.places.empty() ? t : spread_.places[static_cast<size_t>(t)];
      const float* weights = internal.copies->weights + (row + t) * kTileKeys;
      float* const sums = offset.data() + internal_keys_ - 1 - place + first;
      const float factor = scale[static_cast<size_t>(t)] / static_cast<float>(num);
      for (int64_t j = 0; j < count; ++j) sums[j] += weights[j] * factor;
    }
  }
}

}  // namespace blockscope
