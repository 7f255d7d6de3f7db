// Attention of a tile of query rows over a range of keys on tensor cores: 16-bit inputs, float32
// sums. A warp owns 16 or 32 rows. All warps share the key and value tiles, which cp.async loads
// kStages - 1 tiles in advance. A weight is the sum of two 16-bit numbers (hi + lo), which keeps
// float32's accuracy of the outputs; a single number would have an error of 2^-9 of each weight.
#pragma once

#include <cmath>

#include "kernels/device/device.h"

namespace blockscope::BLOCKSCOPE_BACKEND {

template <class Scalar_, int kDim_, int kWarps_, int kRowTiles_, int kStages_, int kStep_,
          int kKeys_ = 64>
struct TileShape {
  using Scalar = Scalar_;
  static constexpr int kDim = kDim_;
  static constexpr int kWarps = kWarps_;
  static constexpr int kRowTiles = kRowTiles_;  // tiles of 16 rows per warp
  static constexpr int kStages = kStages_;
  static constexpr int kStep = kStep_;  // keys whose scores are in registers at a time
  static constexpr int kKeys = kKeys_;  // keys of a tile
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kWarpRows = kRowTiles * 16;
  static constexpr int kRows = kWarps * kWarpRows;
  static constexpr int kPitch = kDim * 2;   // bytes of a row in shared memory
  static constexpr int kPieces = kDim / 8;  // 16-byte pieces of a row
  static constexpr int kTileBytes = kKeys * kPitch;
  static constexpr int kQueryBytes = kRows * kPitch;
  static constexpr int kSpanOffset = kQueryBytes + kStages * 2 * kTileBytes;
  static constexpr int kSharedBytes = kSpanOffset + 64;
  // Queries stay in registers if the outputs leave room.
  static constexpr bool kHoldQueries = kRowTiles * kDim <= 128;
  static constexpr int kScoreUnroll = kHoldQueries ? kDim / 16 : 4;
};

// Keys [begin, end) of one KV head and their values. `positions`, if not null, has their row
// numbers. split_tiles keeps the span in shared memory, because only the copies need it and
// registers are scarce.
template <class Scalar>
struct KeySpan {
  const Scalar* keys;
  const Scalar* values;
  int64_t key_stride;
  int64_t value_stride;
  const int32_t* positions;
  int begin;
  int end;
  int dim;
  bool aligned;  // rows start at multiples of 16 bytes
};
static_assert(sizeof(KeySpan<Half>) <= 64);

// Offset in shared memory of a row's 16-byte piece, from the first row. Pieces are rotated through
// the eight groups of four banks, because ldmatrix reads eight rows at once. Row offsets are
// multiples of kPitch, a power of two, so piece_at(row, piece) is piece_at(row, 0) ^ (piece << 4).
// The loops below therefore need only one register for all pieces.
template <class Shape>
__device__ __forceinline__ int piece_at(int row, int piece) {
  return row * Shape::kPitch + ((piece ^ (row & 7)) << 4);
}

// Copies `count` elements of a row from `column` on; the rest of the 16 bytes is 0.
template <class Scalar>
__device__ __forceinline__ void copy_piece(char* to, const Scalar* row, int column, int dim,
                                           bool present, bool aligned) {
  const int left = dim - column;
  const int count = !present || left < 0 ? 0 : left < 8 ? left : 8;
  if (aligned) {
    copy_async_16(to, count > 0 ? row + column : row, count * 2);
    return;
  }
  Scalar* elements = reinterpret_cast<Scalar*>(to);
#pragma unroll 1
  for (int i = 0; i < 8; ++i) elements[i] = i < count ? row[column + i] : Scalar{0};
}

template <class Shape>
__device__ __forceinline__ void copy_tile(int to, const typename Shape::Scalar* rows,
                                          int64_t stride,
                                          const KeySpan<typename Shape::Scalar>& span, int first) {
  constexpr int kAtOnce = Shape::kThreads / Shape::kPieces;
  const int piece = static_cast<int>(threadIdx.x) % Shape::kPieces;
#pragma unroll 1
  for (int row = static_cast<int>(threadIdx.x) / Shape::kPieces; row < Shape::kKeys;
       row += kAtOnce) {
    const int key = first + row;
    const bool present = key < span.end;
    const int64_t index = !present ? 0 : span.positions != nullptr ? span.positions[key] : key;
    copy_piece(dynamic_shared() + to + piece_at<Shape>(row, piece), rows + index * stride,
               piece * 8, span.dim, present, span.aligned);
  }
}

// State of a warp's rows. Lane i holds rows i / 4 and i / 4 + 8 of each tile of 16 rows. It holds
// the two channels from i % 4 * 2 on of every 8 channels. `sum` is the lane's own share.
template <class Shape>
struct WarpState {
  float output[Shape::kRowTiles][Shape::kDim / 8][4];
  float max[Shape::kRowTiles][2];  // maxima of the scores times log2(e)
  float sum[Shape::kRowTiles][2];
};

template <class Shape>
__device__ __forceinline__ void clear(WarpState<Shape>& state) {
#pragma unroll
  for (int t = 0; t < Shape::kRowTiles; ++t) {
#pragma unroll
    for (int n = 0; n < Shape::kDim / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) state.output[t][n][i] = 0.0f;
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      state.max[t][half] = -INFINITY;
      state.sum[t][half] = 0.0f;
    }
  }
}

// Offsets that this lane passes to ldmatrix. For left factors and transposed right factors: rows
// 0..7, rows 8..15, then the next 8 channels. For plain right factors: the channels first.
template <class Shape>
__device__ __forceinline__ int rows_first() {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  return piece_at<Shape>(lane % 16, lane / 16);
}
template <class Shape>
__device__ __forceinline__ int channels_first() {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  return piece_at<Shape>(lane % 8 + lane / 16 * 8, lane / 8 % 2);
}

// Loads the queries as the left factor: rows 0..15 of the warp's tile t, channels from kk * 16 on.
// `queries` is rows_first() of the warp's rows.
template <class Shape>
__device__ __forceinline__ void load_queries(uint32_t (&a)[4], int queries, int t, int kk) {
  load_matrix_x4(a, dynamic_shared() + (queries ^ (kk << 5)) + t * 16 * Shape::kPitch);
}

// Scores of kStep keys; `keys` is their channels_first().
template <class Shape>
__device__ __forceinline__ void score_step(
    float (&scores)[Shape::kRowTiles][Shape::kStep / 8][4], int queries,
    const uint32_t (&held)[Shape::kHoldQueries ? Shape::kRowTiles : 1]
                          [Shape::kHoldQueries ? Shape::kDim / 16 : 1][4],
    int keys) {
#pragma unroll
  for (int t = 0; t < Shape::kRowTiles; ++t) {
#pragma unroll
    for (int n = 0; n < Shape::kStep / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) scores[t][n][i] = 0.0f;
    }
  }
#pragma unroll(Shape::kScoreUnroll)
  for (int kk = 0; kk < Shape::kDim / 16; ++kk) {
    uint32_t a[Shape::kRowTiles][4];
#pragma unroll
    for (int t = 0; t < Shape::kRowTiles; ++t) {
      if constexpr (Shape::kHoldQueries) {
#pragma unroll
        for (int i = 0; i < 4; ++i) a[t][i] = held[t][kk][i];
      } else {
        load_queries<Shape>(a[t], queries, t, kk);
      }
    }
#pragma unroll
    for (int n = 0; n < Shape::kStep / 16; ++n) {
      uint32_t b[4];
      load_matrix_x4(b, dynamic_shared() + (keys ^ (kk << 5)) + n * 16 * Shape::kPitch);
#pragma unroll
      for (int t = 0; t < Shape::kRowTiles; ++t) {
        multiply_add(scores[t][n * 2], a[t], b[0], b[1], typename Shape::Scalar{});
        multiply_add(scores[t][n * 2 + 1], a[t], b[2], b[3], typename Shape::Scalar{});
      }
    }
  }
}

// Turns scores into weights relative to the running maximum. If the maximum changed, sums and
// outputs are rescaled. The lane's row of tile t and half sees the first seen(t, half) keys of the
// step.
template <class Shape, class Seen>
__device__ __forceinline__ void weigh_step(float (&scores)[Shape::kRowTiles][Shape::kStep / 8][4],
                                           WarpState<Shape>& state, float scale_log2,
                                           const Seen& seen) {
  const int first_column = static_cast<int>(threadIdx.x) % 4 * 2;
  float factors[Shape::kRowTiles][2];
  bool moved = false;
#pragma unroll
  for (int t = 0; t < Shape::kRowTiles; ++t) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int present = seen(t, half);
      float largest = state.max[t][half];
#pragma unroll
      for (int n = 0; n < Shape::kStep / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          float& score = scores[t][n][half * 2 + i];
          score *= scale_log2;
          if (present < Shape::kStep && n * 8 + first_column + i >= present) score = -INFINITY;
          largest = fmaxf(largest, score);  // NaN is handled by the weights
        }
      }
      largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
      largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 2));
      moved = moved || largest != state.max[t][half];
      const float shift = largest == -INFINITY ? 0.0f : largest;
      factors[t][half] = exp2_flushed(state.max[t][half] - shift);
      state.max[t][half] = largest;
      float sum = state.sum[t][half] * factors[t][half];
#pragma unroll
      for (int n = 0; n < Shape::kStep / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          float& score = scores[t][n][half * 2 + i];
          score = exp2_flushed(score - shift);
          sum += score;
        }
      }
      state.sum[t][half] = sum;
    }
  }
  if (!__any_sync(~0u, moved)) return;  // all factors are 1
#pragma unroll
  for (int t = 0; t < Shape::kRowTiles; ++t) {
#pragma unroll
    for (int n = 0; n < Shape::kDim / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) state.output[t][n][i] *= factors[t][i / 2];
    }
  }
}

// output += weights * values, the weights as hi + lo; `values` is their rows_first().
template <class Shape>
__device__ __forceinline__ void add_values(
    const float (&weights)[Shape::kRowTiles][Shape::kStep / 8][4], WarpState<Shape>& state,
    int values) {
  using Scalar = typename Shape::Scalar;
#pragma unroll
  for (int kk = 0; kk < Shape::kStep / 16; ++kk) {
    uint32_t high[Shape::kRowTiles][4];
    uint32_t low[Shape::kRowTiles][4];
#pragma unroll
    for (int t = 0; t < Shape::kRowTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float left = weights[t][kk * 2 + i / 2][i % 2 * 2];
        const float right = weights[t][kk * 2 + i / 2][i % 2 * 2 + 1];
        high[t][i] = pack_pair(left, right, Scalar{});
        low[t][i] = pack_pair(left - unpack_low(high[t][i], Scalar{}),
                              right - unpack_high(high[t][i], Scalar{}), Scalar{});
      }
    }
#pragma unroll
    for (int n = 0; n < Shape::kDim / 16; ++n) {
      uint32_t b[4];
      load_matrix_x4_transposed(b,
                                dynamic_shared() + (values ^ (n << 5)) + kk * 16 * Shape::kPitch);
#pragma unroll
      for (int t = 0; t < Shape::kRowTiles; ++t) {
        multiply_add(state.output[t][n * 2], high[t], b[0], b[1], Scalar{});
        multiply_add(state.output[t][n * 2 + 1], high[t], b[2], b[3], Scalar{});
      }
#pragma unroll
      for (int t = 0; t < Shape::kRowTiles; ++t) {
        multiply_add(state.output[t][n * 2], low[t], b[0], b[1], Scalar{});
        multiply_add(state.output[t][n * 2 + 1], low[t], b[2], b[3], Scalar{});
      }
    }
  }
}

// Attends to the span in shared memory. The queries are there, too, or their copies are issued but
// not committed. Keys are counted from the span's begin. works(key): whether a row of this warp
// sees the key or a later one; other warps only copy. seen(t, half, first, left): how many of the
// `left` keys from `first` on the lane's row sees.
template <class Shape, class Works, class Seen>
__device__ __forceinline__ void attend_span(float scale_log2, const Works& works, const Seen& seen,
                                            WarpState<Shape>& state) {
  const auto& span = *reinterpret_cast<const KeySpan<typename Shape::Scalar>*>(dynamic_shared() +
                                                                               Shape::kSpanOffset);
  const int queries =
      static_cast<int>(threadIdx.x) / 32 * Shape::kWarpRows * Shape::kPitch + rows_first<Shape>();
  const int num_keys = span.end - span.begin;
  const int num_tiles = (num_keys + Shape::kKeys - 1) / Shape::kKeys;
  const auto stage_of = [&](int tile) {
    return Shape::kQueryBytes + tile % Shape::kStages * 2 * Shape::kTileBytes;
  };
  const auto bring = [&](int tile) {
    if (tile < num_tiles) {
      const int first = span.begin + tile * Shape::kKeys;
      copy_tile<Shape>(stage_of(tile), span.keys, span.key_stride, span, first);
      copy_tile<Shape>(stage_of(tile) + Shape::kTileBytes, span.values, span.value_stride, span,
                       first);
    }
    copy_async_commit();  // also an empty group, because waits count groups
  };
#pragma unroll 1
  for (int tile = 0; tile < Shape::kStages - 1; ++tile) bring(tile);
  uint32_t held[Shape::kHoldQueries ? Shape::kRowTiles : 1]
               [Shape::kHoldQueries ? Shape::kDim / 16 : 1][4];
#pragma unroll 1
  for (int tile = 0; tile < num_tiles; ++tile) {
    copy_async_wait<Shape::kStages - 2>();
    __syncthreads();  // all threads see the tile, and the previous tile's place is free
    bring(tile + Shape::kStages - 1);
    if (!works(tile * Shape::kKeys)) continue;
    if constexpr (Shape::kHoldQueries) {
      if (tile == 0) {
#pragma unroll
        for (int t = 0; t < Shape::kRowTiles; ++t) {
#pragma unroll
          for (int kk = 0; kk < Shape::kDim / 16; ++kk) {
            load_queries<Shape>(held[t][kk], queries, t, kk);
          }
        }
      }
    }
    const int left = num_keys - tile * Shape::kKeys;
#pragma unroll 1
    for (int step = 0; step < Shape::kKeys && step < left; step += Shape::kStep) {
      const int keys = stage_of(tile) + step * Shape::kPitch;
      float scores[Shape::kRowTiles][Shape::kStep / 8][4];
      score_step<Shape>(scores, queries, held, keys + channels_first<Shape>());
      weigh_step<Shape>(scores, state, scale_log2, [&](int t, int half) {
        return seen(t, half, tile * Shape::kKeys + step, left - step);
      });
      add_values<Shape>(scores, state, keys + Shape::kTileBytes + rows_first<Shape>());
    }
  }
  copy_async_wait<0>();
}

}  // namespace blockscope::BLOCKSCOPE_BACKEND
