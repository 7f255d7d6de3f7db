#include "kernels/cpu/row_tile.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <memory>
#include <new>

namespace blockscope {
namespace {

constexpr std::size_t kAlignment = 64;
constexpr int64_t kLine = 64;

struct AlignedDelete {
  void operator()(float* p) const { ::operator delete (p, std::align_val_t{kAlignment}); }
};

// Scratch memory of this thread, kept between calls, because fresh pages cost more than a small
// operator.
float* thread_scratch(int64_t floats) {
  thread_local std::unique_ptr<float, AlignedDelete> memory;
  thread_local int64_t capacity = 0;
  if (floats > capacity) {
    memory.reset();
    capacity = 0;
    const auto bytes = static_cast<std::size_t>(floats) * sizeof(float);
    memory.reset(static_cast<float*>(::operator new (bytes, std::align_val_t{kAlignment})));
    capacity = floats;
  }
  return memory.get();
}

}  // namespace

RowTile::RowTile(const TileKernels& kernels, Element element, int64_t num_rows, int64_t dim)
    : kernels_(kernels), element_(element), num_rows_(num_rows), dim_(dim) {
  const int64_t rows = (num_rows + kMaxLanes - 1) / kMaxLanes * kMaxLanes;
  const std::array<int64_t, 9> sizes = {packed_query_floats(rows, dim),
                                        packed_tile_floats(dim),
                                        rows * kTileKeys,
                                        rows * padded(dim),
                                        rows,
                                        rows * kMaxLanes,
                                        rows,
                                        rows * kMaxLanes,
                                        rows * kMaxLanes};
  int64_t total = 0;
  for (const int64_t size : sizes) total += size;
  float* next = thread_scratch(total);
  const std::array<float**, 9> members = {&queries_, &packed_,     &own_scores_,
                                          &output_,  &row_max_,    &row_sum_,
                                          &alpha_,   &row_energy_, &row_largest_};
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    *members[i] = next;
    next += sizes[i];
  }
  scores_ = own_scores_;
  std::fill_n(queries_, sizes[0], 0.0f);  // the last group of queries may be partly unused
  std::fill_n(output_, sizes[3], 0.0f);
  std::fill_n(row_max_, rows, -std::numeric_limits<float>::infinity());
  std::fill_n(row_sum_, sizes[5], 0.0f);
}

void RowTile::set_query(int64_t row, const void* query) {
  kernels_.pack_query(element_, query, dim_, row, queries_);
}

void RowTile::keep_weights(float* weights, float* max, int64_t stride) {
  kept_weights_ = weights;
  kept_max_ = max;
  kept_stride_ = stride;
}

void RowTile::follow_spread(const TileCopies& copies, int64_t first_row, int64_t first_tile) {
  copies_ = &copies;
  first_copied_row_ = first_row;
  tile_number_ = first_tile;
  next_copy_ =
      static_cast<size_t>(std::lower_bound(copies.tiles.begin(), copies.tiles.end(), first_tile) -
                          copies.tiles.begin());
  std::fill_n(row_energy_, num_rows_ * kMaxLanes, 0.0f);
  std::fill_n(row_largest_, num_rows_ * kMaxLanes, kNegativeInfinity);
}

bool RowTile::begin_copy() {
  const int64_t number = tile_number_++;
  if (next_copy_ == copies_->tiles.size() || copies_->tiles[next_copy_] != number) return false;
  copied_row_ = static_cast<int64_t>(next_copy_++) * copies_->stride + first_copied_row_;
  scores_ = copies_->weights + copied_row_ * kTileKeys;
  return true;
}

void RowTile::end_copy() const {
  std::copy_n(row_sum_, num_rows_ * kMaxLanes, copies_->sums + copied_row_ * kMaxLanes);
  std::copy_n(row_max_, num_rows_, copies_->max + copied_row_);
}

const float* RowTile::score_tile(const KeyRange& range, int64_t begin, int64_t count) {
  kernels_.pack_keys(element_, range.keys + begin * range.key_stride, range.key_stride, count, dim_,
                     packed_);
  kernels_.scores(element_, queries_, packed_, num_rows_, count, dim_, scores_);
  return scores_;
}

void RowTile::attend(const KeyRange& range, int64_t begin, int64_t end, float scale,
                     const int64_t* visible_end) {
  std::array<int64_t, kMaxRows> visible;
  for (int64_t tile = begin; tile < end; tile += kTileKeys) {
    const int64_t count = std::min(kTileKeys, end - tile);
    const int64_t kept_row = tile / kTileKeys * kept_stride_;
    const bool follows = copies_ != nullptr;
    const bool copies = follows && begin_copy();
    if (kept_weights_ != nullptr) {
      scores_ = kept_weights_ + kept_row * kTileKeys;
    } else if (!copies) {
      scores_ = own_scores_;
    }
    score_tile(range, tile, count);
    bool partial = false;
    if (visible_end) {
      for (int64_t r = 0; r < num_rows_; ++r) {
        visible[static_cast<std::size_t>(r)] = visible_end[r] - tile;
        partial = partial || visible_end[r] < tile + count;
      }
    }
    kernels_.softmax(scores_, num_rows_, count, scale, partial ? visible.data() : nullptr, row_max_,
                     row_sum_, alpha_, follows ? row_energy_ : nullptr,
                     follows ? row_largest_ : nullptr);
    if (copies) {
      end_copy();
      if (kept_weights_ != nullptr) {
        std::copy_n(scores_, num_rows_ * kTileKeys, copies_->weights + copied_row_ * kTileKeys);
      }
    }
    if (kept_max_ != nullptr) std::copy_n(row_max_, num_rows_, kept_max_ + kept_row);
    if (range.values == nullptr) continue;
    kernels_.pack_values(element_, range.values + tile * range.value_stride, range.value_stride,
                         count, dim_, packed_);
    accumulate(range, count, tile + count, std::min(kTileKeys, end - tile - count));
  }
}

// The next tile's keys and values are prefetched between the products of some rows, as many lines
// at a time as a core can have in flight. The core would drop most of them if all came at once.
// Without prefetching, packing waits for memory: 2.2 us instead of 0.6 us of a tile's 17 us.
void RowTile::accumulate(const KeyRange& range, int64_t count, int64_t next, int64_t next_count) {
  const int64_t row_bytes = dim_ * element_bytes(element_);
  const int64_t fetched = std::max<int64_t>(next_count, 0);
  const char* keys = range.keys + next * range.key_stride;
  const char* values = range.values + next * range.value_stride;
  const int64_t slice_rows = kernels_.slice_rows;
  const int64_t slices = (num_rows_ + slice_rows - 1) / slice_rows;
  for (int64_t slice = 0; slice < slices; ++slice) {
    for (int64_t i = fetched * slice / slices; i < fetched * (slice + 1) / slices; ++i) {
      for (int64_t at = 0; at < row_bytes; at += kLine) {
        __builtin_prefetch(keys + i * range.key_stride + at, 0, 2);
        __builtin_prefetch(values + i * range.value_stride + at, 0, 2);
      }
    }
    const int64_t row = slice * slice_rows;
    kernels_.accumulate(element_, scores_ + row * kTileKeys, packed_, alpha_ + row,
                        std::min(slice_rows, num_rows_ - row), count, dim_,
                        output_ + row * padded(dim_));
  }
}

AttentionPart RowTile::row_state(int64_t row) const {
  float sum = 0.0f;
  for (int64_t lane = 0; lane < kMaxLanes; ++lane) sum += row_sum_[row * kMaxLanes + lane];
  const bool only_nan = row_max_[row] == kNegativeInfinity && std::isnan(sum);
  return {output_ + row * padded(dim_), only_nan ? sum : row_max_[row], sum};
}

void RowTile::row_spreads(float* energy, float* largest) const {
  kernels_.reduce_lanes(row_energy_, row_largest_, num_rows_, energy, largest);
}

int64_t keys_per_chunk(int64_t num_keys) {
  constexpr int64_t kMinKeys = 512;
  constexpr int64_t kMostChunks = 16;
  const int64_t keys = (num_keys + kMostChunks - 1) / kMostChunks;
  return std::max(kMinKeys, (keys + kTileKeys - 1) / kTileKeys * kTileKeys);
}

}  // namespace blockscope
