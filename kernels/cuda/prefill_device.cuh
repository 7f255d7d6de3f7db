// prefill_attention. For 16-bit inputs, a thread block takes 64 or 128 rows (token * G + g) of a KV
// head: its query heads at neighbouring tokens. It walks the keys that the last row sees, on tensor
// cores, with split_tile_device.cuh. For float32, it takes 32 tokens of one query head, with
// split_floats_device.cuh.
#pragma once

#include "kernels/cuda/device_calls.h"
#include "kernels/cuda/split_floats_device.cuh"
#include "kernels/cuda/split_tile_device.cuh"
#include "kernels/cuda/typed_device.cuh"

namespace blockscope::BLOCKSCOPE_BACKEND {

__device__ __forceinline__ int visible_end(const PrefillCall& call, int length, int token) {
  const int64_t end = ((call.query_start + token) / call.block_length + 1) * call.block_length;
  return static_cast<int>(end < length ? end : length);
}

// The keys of a KV head that a token sees.
template <class Scalar>
__device__ __forceinline__ KeySpan<Scalar> span_before(const PrefillCall& call, int sequence,
                                                       int kv_head, int end) {
  KeySpan<Scalar> span;
  span.keys = row_at<Scalar>(call.k, sequence, kv_head, 0);
  span.values = row_at<Scalar>(call.v, sequence, kv_head, 0);
  span.key_stride = call.k.row;
  span.value_stride = call.v.row;
  span.positions = nullptr;
  span.begin = 0;
  span.end = end;
  span.dim = call.dim;
  span.aligned = is_aligned<Scalar>(call.k) && is_aligned<Scalar>(call.v);
  return span;
}

template <class Shape>
constexpr int kPrefillSharedBytes = Shape::kSharedBytes + Shape::kRows * 4;

// The end of each row's keys, after the other data in shared memory, because registers are scarce.
template <class Shape>
__device__ __forceinline__ int* prefill_ends() {
  return reinterpret_cast<int*>(dynamic_shared() + Shape::kSharedBytes);
}

template <class Shape>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kThreads == 128 ? 2 : 1)
    prefill_tiles(const __grid_constant__ PrefillCall call) {
  using Scalar = typename Shape::Scalar;
  // Blocks with the most keys first, so that no long one is left at the end.
  const int first = static_cast<int>(gridDim.x - 1 - blockIdx.x) * Shape::kRows;
  const int kv_head = static_cast<int>(blockIdx.y);
  const int sequence = static_cast<int>(blockIdx.z);
  const int rows = call.queries * call.group - first;  // may be more than the tile has
  const int last = (rows < Shape::kRows ? rows : Shape::kRows) - 1;
  const auto token_of = [&](int row) { return (first + row) / call.group; };
  const auto head_of = [&](int row) { return kv_head * call.group + (first + row) % call.group; };
  const int length = call.lengths[sequence];
  if (threadIdx.x == 0) {
    *reinterpret_cast<KeySpan<Scalar>*>(dynamic_shared() + Shape::kSpanOffset) =
        span_before<Scalar>(call, sequence, kv_head, visible_end(call, length, token_of(last)));
  }
#pragma unroll 1
  for (int row = static_cast<int>(threadIdx.x); row < Shape::kRows; row += Shape::kThreads) {
    prefill_ends<Shape>()[row] = visible_end(call, length, token_of(row < last ? row : last));
  }
  const bool aligned = is_aligned<Scalar>(call.q);
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < Shape::kRows * Shape::kPieces;
       i += Shape::kThreads) {
    const int row = i / Shape::kPieces;
    const int piece = i % Shape::kPieces;
    const int from = row <= last ? row : 0;
    copy_piece(dynamic_shared() + piece_at<Shape>(row, piece),
               row_at<Scalar>(call.q, sequence, head_of(from), token_of(from)), piece * 8, call.dim,
               row <= last, aligned);
  }
  __syncthreads();  // all threads see the span and the ends
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp_row = static_cast<int>(threadIdx.x) / 32 * Shape::kWarpRows;
  // Later rows see more keys. All rows see the keys of the warp's first row. No row sees a key that
  // the last row does not see.
  const int common_end = prefill_ends<Shape>()[warp_row];
  const int warp_end = warp_row > last ? 0 : prefill_ends<Shape>()[warp_row + Shape::kWarpRows - 1];
  WarpState<Shape> state;
  clear(state);
  attend_span<Shape>(
      call.scale_log2, [&](int key) { return key < warp_end; },
      [&](int t, int half, int key, int) {
        if (key + Shape::kStep <= common_end) return Shape::kStep;
        return prefill_ends<Shape>()[warp_row + t * 16 + half * 8 + lane / 4] - key;
      },
      state);
#pragma unroll
  for (int t = 0; t < Shape::kRowTiles; ++t) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sum = state.sum[t][half];
      sum += __shfl_xor_sync(~0u, sum, 1);
      sum += __shfl_xor_sync(~0u, sum, 2);
      const int row = warp_row + t * 16 + half * 8 + lane / 4;
      if (row > last) continue;
      const int64_t out_row =
          (static_cast<int64_t>(sequence) * call.heads + head_of(row)) * call.queries +
          token_of(row);
      Scalar* const out = static_cast<Scalar*>(call.out) + out_row * call.dim;
#pragma unroll
      for (int n = 0; n < Shape::kDim / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int column = n * 8 + lane % 4 * 2 + i;
          const float value = state.output[t][n][half * 2 + i];
          if (column < call.dim) out[column] = round_to<Scalar>(sum == 0.0f ? 0.0f : value / sum);
        }
      }
    }
  }
}

template <int kDim>
__global__ void __launch_bounds__(128) prefill_floats(const __grid_constant__ PrefillCall call) {
  using Tile = FloatTile<kDim>;
  const int first = static_cast<int>(blockIdx.x) * Tile::kRows;
  const int head = static_cast<int>(blockIdx.y);
  const int sequence = static_cast<int>(blockIdx.z);
  const int length = call.lengths[sequence];
  const int rows = call.queries - first < Tile::kRows ? call.queries - first : Tile::kRows;
  const KeySpan<float> span = span_before<float>(call, sequence, head / call.group,
                                                 visible_end(call, length, first + rows - 1));
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < Tile::kRows * kDim; i += Tile::kThreads) {
    const int row = i / kDim;
    const int column = i % kDim;
    Tile::queries()[i] = row < rows && column < call.dim
                             ? row_at<float>(call.q, sequence, head, first + row)[column]
                             : 0.0f;
  }
  const int warp_row = static_cast<int>(threadIdx.x) / 32 * Tile::kWarpRows;
  FloatState<kDim> state;
  clear(state);
  attend_floats<kDim>(span, call.scale_log2, state, [&](int r) {
    return warp_row + r < rows ? visible_end(call, length, first + warp_row + r) : 0;
  });
  const int64_t out_row =
      (static_cast<int64_t>(sequence) * call.heads + head) * call.queries + first + warp_row;
  float* out = static_cast<float*>(call.out) + out_row * call.dim;
#pragma unroll
  for (int r = 0; r < Tile::kWarpRows; ++r) {
    if (warp_row + r >= rows) break;
    const float sum = state.sum[r];
#pragma unroll
    for (int n = 0; n < kDim / 32; ++n) {
      const int d = n * 32 + lane_of_warp();
      if (d < call.dim) out[r * call.dim + d] = sum == 0.0f ? 0.0f : state.output[r][n] / sum;
    }
  }
}

// --- launches

inline dim3 prefill_grid(const PrefillCall& call, int rows, int rows_per_tile, int heads) {
  return dim3{static_cast<unsigned>((rows + rows_per_tile - 1) / rows_per_tile),
              static_cast<unsigned>(heads), static_cast<unsigned>(call.sequences)};
}

template <class Shape>
void launch_prefill_tiles(const PrefillCall& call, Stream stream) {
  launch(prefill_tiles<Shape>,
         prefill_grid(call, call.queries * call.group, Shape::kRows, call.heads / call.group),
         dim3{Shape::kThreads, 1, 1}, kPrefillSharedBytes<Shape>, stream, call);
}

template <class Scalar, int kDim>
void launch_prefill_of(const PrefillCall& call, Stream stream) {
  if constexpr (sizeof(Scalar) == 4) {
    using Tile = FloatTile<kDim>;
    launch(prefill_floats<kDim>, prefill_grid(call, call.queries, Tile::kRows, call.heads),
           dim3{Tile::kThreads, 1, 1}, Tile::kSharedBytes, stream, call);
  } else if constexpr (kDim > 128) {
    // Each row takes the same steps, so it has the same bits.
    using Wide = TileShape<Scalar, kDim, 8, 1, 2, 16>;
    if (kPrefillSharedBytes<Wide> <= shared_limit()) {
      launch_prefill_tiles<Wide>(call, stream);
    } else {
      launch_prefill_tiles<TileShape<Scalar, kDim, 4, 1, 2, 16, 32>>(call, stream);
    }
  } else {
    launch_prefill_tiles<TileShape<Scalar, kDim, 8, 1, 2, 32>>(call, stream);
  }
}

void launch_prefill(const PrefillCall& call, void* on) {
  const auto stream = static_cast<Stream>(on);
  with_type(call.type, [&](auto scalar) {
    using Scalar = decltype(scalar);
    switch (padded_dim(call.dim)) {
      case 64:
        return launch_prefill_of<Scalar, 64>(call, stream);
      case 128:
        return launch_prefill_of<Scalar, 128>(call, stream);
      default:
        return launch_prefill_of<Scalar, 256>(call, stream);
    }
  });
}

}  // namespace blockscope::BLOCKSCOPE_BACKEND
