// Fills a WeightSpread (ops.h) while split_attention_cpu walks the keys. The walk copies only the
// tiles in which a range ends; the sums of a row say what all tiles before them held.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/cpu/row_tile.h"
#include "kernels/ops.h"
#include "kernels/shape_check.h"
#include "kernels/simd/tile_kernels.h"

namespace blockscope {

/// States of the rows of one head over one chunk of keys, [T] each: see RowTile.
struct ChunkStates {
  const float* max = nullptr;
  const float* sum = nullptr;
  const float* energy = nullptr;
  const float* largest = nullptr;
  int64_t first_tile = 0;
  int64_t end_tile = 0;
};

/// One side of the keys of one head: its chunks in order, and the copied tiles.
struct SideStates {
  std::vector<ChunkStates> chunks;
  const TileCopies* copies = nullptr;
  int64_t first_row = 0;  // row of the head's query 0 in each copy
  int64_t num_keys = 0;
  const float* lse = nullptr;  // [T]
};

class SpreadFiller {
 public:
  SpreadFiller(const TileKernels& kernels, const AttentionSizes& sizes, int64_t internal_keys,
               WeightSpread& spread);

  /// The ends of the ranges, counted in the keys that are read: `positions` (ascending), or all.
  std::vector<int64_t> ends_among(int64_t sequence, const int32_t* positions, int64_t length) const;
  /// The copies of a walk over the keys of a KV head, without memory: those in which one of `ends`
  /// lies before the last key.
  static std::vector<int64_t> tiles_of(const std::vector<int64_t>& ends, int64_t length);
  /// The copies of the internal keys: all tiles.
  std::vector<int64_t> internal_tiles() const;

  /// Fills the entries of one head. external.lse null: the head reused its external pair. `lse`
  /// [T] is that of both sides.
  void fill(int64_t sequence, int64_t head, const SideStates& external,
            const std::vector<int64_t>& ends, const SideStates& internal, const float* lse) const;

 private:
  const TileKernels& kernels_;
  const AttentionSizes& sizes_;
  const int64_t internal_keys_;
  const WeightSpread& spread_;
  float *entropy_, *largest_, *range_, *key_, *offset_;  // of spread_
};

}  // namespace blockscope
