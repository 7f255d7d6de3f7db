// Attention of a tile of query rows over a range of keys with float32 multiply-adds, without
// rounding to a narrower type. A warp owns 8 rows. For the scores, a lane takes one of 32 keys; for
// the outputs, every 32nd channel.
#pragma once

#include <cmath>

#include "kernels/cuda/merge_device.cuh"
#include "kernels/cuda/split_tile_device.cuh"

namespace blockscope::BLOCKSCOPE_BACKEND {

template <int kDim>
struct FloatTile {
  static constexpr int kThreads = 128;
  static constexpr int kWarpRows = 8;
  static constexpr int kRows = 32;
  static constexpr int kKeys = 32;
  static constexpr int kPitch = kDim + 4;  // floats: lanes read four of 32 rows without conflicts
  // If everything would exceed the 99 KiB of smaller GPUs, the weights overwrite the keys.
  static constexpr bool kWeightsOverKeys = kDim > 128;
  static constexpr int kSharedBytes =
      (kRows * kDim + 2 * kKeys * kPitch + (kWeightsOverKeys ? 0 : kRows * kKeys)) *
      static_cast<int>(sizeof(float));

  static __device__ __forceinline__ float* queries() {
    return reinterpret_cast<float*>(dynamic_shared());
  }
  static __device__ __forceinline__ float* keys() { return queries() + kRows * kDim; }
  static __device__ __forceinline__ float* values() { return keys() + kKeys * kPitch; }
  // The weights of this warp: [key][row].
  static __device__ __forceinline__ float* weights() {
    float* first = kWeightsOverKeys ? keys() : values() + kKeys * kPitch;
    return first + static_cast<int>(threadIdx.x) / 32 * kKeys * kWarpRows;
  }
};

template <int kDim>
struct FloatState {
  float output[FloatTile<kDim>::kWarpRows][kDim / 32];
  float max[FloatTile<kDim>::kWarpRows];  // maxima of the scores times log2(e)
  float sum[FloatTile<kDim>::kWarpRows];
};

template <int kDim>
__device__ __forceinline__ void clear(FloatState<kDim>& state) {
#pragma unroll
  for (int r = 0; r < FloatTile<kDim>::kWarpRows; ++r) {
#pragma unroll
    for (int n = 0; n < kDim / 32; ++n) state.output[r][n] = 0.0f;
    state.max[r] = -INFINITY;
    state.sum[r] = 0.0f;
  }
}

// Loads keys [first, first + 32) and, with kValues, their values; 0 after the end and from channel
// `dim` on.
template <int kDim, bool kValues = true, class Scalar>
__device__ __forceinline__ void copy_floats(const KeySpan<Scalar>& span, int first) {
  using Tile = FloatTile<kDim>;
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < Tile::kKeys * kDim; i += Tile::kThreads) {
    const int row = i / kDim;
    const int column = i % kDim;
    const int key = first + row;
    const bool present = key < span.end && column < span.dim;
    const int64_t index = !present ? 0 : span.positions != nullptr ? span.positions[key] : key;
    Tile::keys()[row * Tile::kPitch + column] =
        present ? to_float(span.keys[index * span.key_stride + column]) : 0.0f;
    if constexpr (kValues) {
      Tile::values()[row * Tile::kPitch + column] =
          present ? to_float(span.values[index * span.value_stride + column]) : 0.0f;
    }
  }
}

// Scores of this warp's rows with the lane's key.
template <int kDim>
__device__ __forceinline__ void score_floats(float (&scores)[FloatTile<kDim>::kWarpRows]) {
  using Tile = FloatTile<kDim>;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const float* queries =
      Tile::queries() + static_cast<int>(threadIdx.x) / 32 * Tile::kWarpRows * kDim;
#pragma unroll
  for (int r = 0; r < Tile::kWarpRows; ++r) scores[r] = 0.0f;
#pragma unroll 4
  for (int d = 0; d < kDim; d += 4) {
    const float4 key = *reinterpret_cast<const float4*>(Tile::keys() + lane * Tile::kPitch + d);
#pragma unroll
    for (int r = 0; r < Tile::kWarpRows; ++r) {
      const float4 query = *reinterpret_cast<const float4*>(queries + r * kDim + d);
      scores[r] = fmaf(query.x, key.x, scores[r]);
      scores[r] = fmaf(query.y, key.y, scores[r]);
      scores[r] = fmaf(query.z, key.z, scores[r]);
      scores[r] = fmaf(query.w, key.w, scores[r]);
    }
  }
}

// Attends to all keys of the span. The queries are in shared memory, but not yet visible to all
// threads. Row r of this warp sees the keys before end_of(r).
template <int kDim, class Scalar, class EndOf>
__device__ __forceinline__ void attend_floats(const KeySpan<Scalar>& span, float scale_log2,
                                              FloatState<kDim>& state, const EndOf& end_of) {
  using Tile = FloatTile<kDim>;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float* const weights = Tile::weights();
#pragma unroll 1
  for (int first = span.begin; first < span.end; first += Tile::kKeys) {
    copy_floats<kDim>(span, first);
    __syncthreads();
    float scores[Tile::kWarpRows];
    score_floats<kDim>(scores);
    if constexpr (Tile::kWeightsOverKeys) __syncthreads();  // all threads have read the keys
#pragma unroll
    for (int r = 0; r < Tile::kWarpRows; ++r) {
      const float score = first + lane < end_of(r) ? scores[r] * scale_log2 : -INFINITY;
      const float largest = fmaxf(state.max[r], warp_max(score));
      const float shift = largest == -INFINITY ? 0.0f : largest;
      const float factor = exp2_flushed(state.max[r] - shift);
      const float weight = exp2_flushed(score - shift);
      state.max[r] = largest;
      state.sum[r] = state.sum[r] * factor + warp_sum(weight);
#pragma unroll
      for (int n = 0; n < kDim / 32; ++n) state.output[r][n] *= factor;
      weights[lane * Tile::kWarpRows + r] = weight;
    }
    __syncwarp();
#pragma unroll 2
    for (int key = 0; key < Tile::kKeys; ++key) {
      const float4 low = *reinterpret_cast<const float4*>(weights + key * Tile::kWarpRows);
      const float4 high = *reinterpret_cast<const float4*>(weights + key * Tile::kWarpRows + 4);
      const float weight[Tile::kWarpRows] = {low.x,  low.y,  low.z,  low.w,
                                             high.x, high.y, high.z, high.w};
#pragma unroll
      for (int n = 0; n < kDim / 32; ++n) {
        const float value = Tile::values()[key * Tile::kPitch + n * 32 + lane];
#pragma unroll
        for (int r = 0; r < Tile::kWarpRows; ++r) {
          state.output[r][n] = fmaf(weight[r], value, state.output[r][n]);
        }
      }
    }
    __syncthreads();  // before the tile is overwritten
  }
}

}  // namespace blockscope::BLOCKSCOPE_BACKEND
