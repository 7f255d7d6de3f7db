// prefill_attention: a thread block takes 32 tokens of one query head and walks the keys that the
// last of them sees, by split_floats_device.cuh: float32 multiply-adds for every type.
#pragma once

#include "kernels/device_calls.h"
#include "kernels/split_floats_device.cuh"
#include "kernels/typed_device.cuh"

namespace blockscope::BLOCKSCOPE_WORLD {

__device__ __forceinline__ int visible_end(const PrefillCall& call, int length, int token) {
  const int64_t end = ((call.query_start + token) / call.block_length + 1) * call.block_length;
  return static_cast<int>(end < length ? end : length);
}

template <class Scalar, int kDim>
__global__ void __launch_bounds__(128) prefill_tiles(const __grid_constant__ PrefillCall call) {
  using Tile = FloatTile<kDim>;
  const int first = static_cast<int>(blockIdx.x) * Tile::kRows;
  const int head = static_cast<int>(blockIdx.y);
  const int sequence = static_cast<int>(blockIdx.z);
  const int length = call.lengths[sequence];
  const int rows = call.queries - first < Tile::kRows ? call.queries - first : Tile::kRows;
  KeySpan<Scalar> span;
  span.keys = row_at<Scalar>(call.k, sequence, head / call.group, 0);
  span.values = row_at<Scalar>(call.v, sequence, head / call.group, 0);
  span.key_stride = call.k.row;
  span.value_stride = call.v.row;
  span.positions = nullptr;
  span.begin = 0;
  span.end = visible_end(call, length, first + rows - 1);
  span.dim = call.dim;
  span.aligned = false;
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < Tile::kRows * kDim; i += Tile::kThreads) {
    const int row = i / kDim;
    const int column = i % kDim;
    Tile::queries()[i] = row < rows && column < call.dim
                             ? to_float(row_at<Scalar>(call.q, sequence, head, first + row)[column])
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
  Scalar* out = static_cast<Scalar*>(call.out) + out_row * call.dim;
#pragma unroll
  for (int r = 0; r < Tile::kWarpRows; ++r) {
    if (warp_row + r >= rows) break;
    const float sum = state.sum[r];
#pragma unroll
    for (int n = 0; n < kDim / 32; ++n) {
      const int d = n * 32 + lane_of_warp();
      if (d < call.dim) {
        out[r * call.dim + d] = round_to<Scalar>(sum == 0.0f ? 0.0f : state.output[r][n] / sum);
      }
    }
  }
}

template <class Scalar, int kDim>
void launch_prefill_tiles(const PrefillCall& call, Stream stream) {
  using Tile = FloatTile<kDim>;
  const dim3 grid{static_cast<unsigned>((call.queries + Tile::kRows - 1) / Tile::kRows),
                  static_cast<unsigned>(call.heads), static_cast<unsigned>(call.sequences)};
  launch(prefill_tiles<Scalar, kDim>, grid, dim3{Tile::kThreads, 1, 1}, Tile::kSharedBytes, stream,
         call);
}

void launch_prefill(const PrefillCall& call, void* on) {
  const auto stream = static_cast<Stream>(on);
  with_type(call.type, [&](auto scalar) {
    using Scalar = decltype(scalar);
    switch (padded_dim(call.dim)) {
      case 64:
        return launch_prefill_tiles<Scalar, 64>(call, stream);
      case 128:
        return launch_prefill_tiles<Scalar, 128>(call, stream);
      default:
        return launch_prefill_tiles<Scalar, 256>(call, stream);
    }
  });
}

}  // namespace blockscope::BLOCKSCOPE_WORLD
