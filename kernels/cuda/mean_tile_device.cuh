// Mean probabilities of keys of 16-bit inputs on tensor cores. A thread block takes up to
// kMeanTileKeys keys and all query rows of a KV head, 64 or 128 rows at a time. It sums every
// column of a tile in the same order, so equal keys have equal means.
#pragma once

#include <cmath>

#include "kernels/cuda/device_calls.h"
#include "kernels/cuda/key_tile_device.cuh"
#include "kernels/cuda/typed_device.cuh"

namespace blockscope::BLOCKSCOPE_BACKEND {

constexpr int kMeanTileKeys =
    512;  // most keys of a thread block; the queries are read once for them

// Queries, the key tiles, and [warp][key] sums.
template <class Shape>
constexpr int kMeanSharedBytes = kKeyTilesEnd<Shape> +
                                 Shape::kWarps* kMeanTileKeys* static_cast<int>(sizeof(float));

// blockIdx is (keys, KV head, sequence).
template <class Shape>
__global__ void __launch_bounds__(Shape::kThreads)
    mean_tiles(const __grid_constant__ MeansCall call) {
  using Scalar = typename Shape::Scalar;
  const int sequence = static_cast<int>(blockIdx.z);
  const int kv_head = static_cast<int>(blockIdx.y);
  const int first = static_cast<int>(blockIdx.x) * call.keys_per_block;
  const int length = call.lengths[sequence];
  if (first >= length) return;
  const int count = length - first < call.keys_per_block ? length - first : call.keys_per_block;
  const int num_tiles = (count + Shape::kKeys - 1) / Shape::kKeys;
  const int rows = call.group * call.queries;
  const int lane = lane_of_warp();
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int warp_row = warp * Shape::kWarpRows;
  const bool aligned = is_aligned<Scalar>(call.q);
  KeySpan<Scalar> span;
  span.keys = row_at<Scalar>(call.k_ext, sequence, kv_head, 0);
  span.values = nullptr;
  span.key_stride = call.k_ext.row;
  span.value_stride = 0;
  span.positions = nullptr;
  span.begin = first;
  span.end = first + count;
  span.dim = call.dim;
  span.aligned = is_aligned<Scalar>(call.k_ext);
  const auto head_of = [&](int row) { return kv_head * call.group + row / call.queries; };
  // No other warp touches a warp's sums before the end.
  float* const sums =
      reinterpret_cast<float*>(dynamic_shared() + kKeyTilesEnd<Shape>) + warp * kMeanTileKeys;
  for (int i = lane; i < num_tiles * Shape::kKeys; i += 32) sums[i] = 0.0f;
  __syncwarp();

#pragma unroll 1
  for (int base = 0; base < rows; base += Shape::kRows) {
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < Shape::kRows * Shape::kPieces;
         i += Shape::kThreads) {
      const int row = i / Shape::kPieces;
      const int piece = i % Shape::kPieces;
      const bool present = base + row < rows;
      const int from = present ? base + row : 0;
      copy_piece(dynamic_shared() + piece_at<Shape>(row, piece),
                 row_at<Scalar>(call.q, sequence, head_of(from), from % call.queries), piece * 8,
                 call.dim, present, aligned);
    }
    // lse times log2(e). Infinite for a row with only -inf scores, so that the row adds nothing.
    float lse[Shape::kRowTiles][2];
#pragma unroll
    for (int t = 0; t < Shape::kRowTiles; ++t) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = base + warp_row + t * 16 + half * 8 + lane / 4;
        const int there = row < rows ? row : 0;
        const float value =
            call.lse[(static_cast<int64_t>(sequence) * call.heads + head_of(there)) * call.queries +
                     there % call.queries];
        lse[t][half] = value == -INFINITY ? INFINITY : value * 1.4426950408889634f;
      }
    }
    const int own_rows = rows - base - warp_row - lane / 4;  // > 0 if the lane's first row exists
    score_span<Shape>(span, base + warp_row < rows, [&](int key, const auto& scores) {
      float* const to = sums + key;
#pragma unroll
      for (int n = 0; n < Shape::kStep / 8; ++n) {
        float columns[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          float sum = 0.0f;
#pragma unroll
          for (int t = 0; t < Shape::kRowTiles; ++t) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
              const float weight =
                  exp2_flushed(fmaf(scores[t][n][half * 2 + i], call.scale_log2, -lse[t][half]));
              if (t * 16 + half * 8 < own_rows) sum += weight;
            }
          }
          sum += __shfl_xor_sync(~0u, sum, 4);
          sum += __shfl_xor_sync(~0u, sum, 8);
          columns[i] = sum + __shfl_xor_sync(~0u, sum, 16);
        }
        if (lane < 4) {
          to[n * 8 + lane * 2] += columns[0];
          to[n * 8 + lane * 2 + 1] += columns[1];
        }
      }
    });
    __syncthreads();  // before the queries are overwritten; after the last rows: sums are ready
  }
  const float* const all = reinterpret_cast<float*>(dynamic_shared() + kKeyTilesEnd<Shape>);
  float* const means =
      call.means + (static_cast<int64_t>(sequence) * call.kv_heads + kv_head) * call.max_length;
  for (int key = static_cast<int>(threadIdx.x); key < count; key += Shape::kThreads) {
    float total = 0.0f;
    for (int w = 0; w < Shape::kWarps; ++w) total += all[w * kMeanTileKeys + key];
    means[first + key] = total / static_cast<float>(rows);
  }
}

template <class Shape>
void launch_mean_tiles(MeansCall call, Stream stream) {
  // Prefers more thread blocks to more keys per block, so a few long sequences also fill a GPU.
  constexpr int kWantedBlocks = 1024;
  const int64_t heads = static_cast<int64_t>(call.sequences) * call.kv_heads;
  const int64_t tiles = (call.max_length + Shape::kKeys - 1) / Shape::kKeys;
  const int64_t most = kMeanTileKeys / Shape::kKeys;
  const int64_t each = tiles * heads / kWantedBlocks;
  call.keys_per_block = static_cast<int>(each < 1 ? 1 : each > most ? most : each) * Shape::kKeys;
  const dim3 grid{
      static_cast<unsigned>((call.max_length + call.keys_per_block - 1) / call.keys_per_block),
      static_cast<unsigned>(call.kv_heads), static_cast<unsigned>(call.sequences)};
  launch(mean_tiles<Shape>, grid, dim3{Shape::kThreads, 1, 1}, kMeanSharedBytes<Shape>, stream,
         call);
}

template <class Scalar>
void launch_mean_tiles_of(const MeansCall& call, Stream stream) {
  const bool few = call.group * call.queries <= 64;
  switch (padded_dim(call.dim)) {
    case 64:
      return few ? launch_mean_tiles<TileShape<Scalar, 64, 4, 1, 3, 64>>(call, stream)
                 : launch_mean_tiles<TileShape<Scalar, 64, 8, 1, 3, 64>>(call, stream);
    case 128:
      return few ? launch_mean_tiles<TileShape<Scalar, 128, 4, 1, 3, 64>>(call, stream)
                 : launch_mean_tiles<TileShape<Scalar, 128, 8, 1, 3, 64>>(call, stream);
    default:
      return launch_mean_tiles<TileShape<Scalar, 256, 4, 1, 2, 32, 32>>(call, stream);
  }
}

}  // namespace blockscope::BLOCKSCOPE_BACKEND
