// The attention state of a tile of query rows: queries, running maximum, running sum and
// unnormalised output. It accumulates any number of key ranges. Each task has one object. The
// buffers belong to the thread, so only one object may be alive per thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/cpu/attention_state.h"
#include "kernels/simd/tile_kernels.h"

namespace blockscope {

constexpr int64_t kMaxRows = 128;  // rows per tile; keys are packed once for all of them

// Keys and values of one KV head; strides in bytes between rows of `dim` contiguous elements.
// Without values (null), attend() leaves the output as it is.
struct KeyRange {
  const char* keys = nullptr;
  const char* values = nullptr;
  int64_t key_stride = 0;
  int64_t value_stride = 0;
};

// The tiles of a key range that attend() copies after their softmax. They are counted from 0; a
// copy has `stride` rows, and the state of a row is that after the tile. attend() computes the
// weights of such a tile in place.
struct TileCopies {
  std::vector<int64_t> tiles;  // ascending
  int64_t stride = 0;
  float* weights = nullptr;  // [tile, stride, kTileKeys], relative to exp(max)
  float* sums = nullptr;     // [tile, stride, kMaxLanes]: row_sum of all tiles so far
  float* max = nullptr;      // [tile, stride]
};

class RowTile {
 public:
  // num_rows <= kMaxRows; set_query must be called for every row before keys are read.
  RowTile(const TileKernels& kernels, Element element, int64_t num_rows, int64_t dim);
  RowTile(const RowTile&) = delete;
  RowTile& operator=(const RowTile&) = delete;

  void set_query(int64_t row, const void* query);  // [dim] elements

  // Adds keys [begin, end) of the range. `visible_end` (or null) [num_rows]: row r sees only keys
  // before visible_end[r].
  void attend(const KeyRange& range, int64_t begin, int64_t end, float scale,
              const int64_t* visible_end = nullptr);

  // From now on, attend() also stores its weights and the maximum that they are relative to. For
  // tile i of the range and row r, they are at weights[(i * stride + r) * kTileKeys] and max[i *
  // stride + r]. Each range must begin at a new tile.
  void keep_weights(float* weights, float* max, int64_t stride);

  // From now on, attend() also follows how the weights are spread, and fills `copies` from row
  // `first_row` of each copy on. The next tile has the number `first_tile`.
  void follow_spread(const TileCopies& copies, int64_t first_row, int64_t first_tile);

  // Raw scores of keys [begin, begin + count), count <= kTileKeys: [num_rows, kTileKeys].
  const float* score_tile(const KeyRange& range, int64_t begin, int64_t count);

  // The unfinished state of a row, valid while this object lives. A row with only NaN scores has a
  // NaN maximum, so a merge does not mistake it for an empty row.
  AttentionPart row_state(int64_t row) const;

  // After follow_spread(), for every row: the sum of weight * (score - max) with row_state's max,
  // and the largest score.
  void row_spreads(float* energy, float* largest) const;

 private:
  /// Whether the next tile is copied; then its weights go into the copy.
  bool begin_copy();
  void end_copy() const;
  /// Multiplies the weights of a tile of `count` keys with its values, while it prefetches keys
  /// [next, next + next_count).
  void accumulate(const KeyRange& range, int64_t count, int64_t next, int64_t next_count);

  const TileKernels& kernels_;
  Element element_;
  int64_t num_rows_;
  int64_t dim_;
  float* queries_;
  float* packed_;
  float* scores_;  // of the current tile
  float* own_scores_;
  float* output_;
  float* row_max_;
  float* row_sum_;
  float* alpha_;
  float* kept_weights_ = nullptr;
  float* kept_max_ = nullptr;
  int64_t kept_stride_ = 0;
  float* row_energy_;
  float* row_largest_;
  const TileCopies* copies_ = nullptr;  // not null: follows the spread
  size_t next_copy_ = 0;
  int64_t first_copied_row_ = 0;
  int64_t copied_row_ = 0;
  int64_t tile_number_ = 0;
};

// Keys per task. They depend only on the length, so results depend neither on the number of threads
// nor on the rest of the batch. At most 16 partial states per row.
int64_t keys_per_chunk(int64_t num_keys);

}  // namespace blockscope
