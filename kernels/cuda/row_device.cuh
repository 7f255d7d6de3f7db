// Operators on rows, with a warp per row (merge_attention, cross_step_similarity), and the sets of
// gather_attention, with a thread block per set.
#pragma once

#include <cmath>

#include "kernels/cuda/device_calls.h"
#include "kernels/cuda/typed_device.cuh"

namespace blockscope::BLOCKSCOPE_BACKEND {

constexpr int kRowWarps = 4;

__device__ __forceinline__ int64_t row_of_warp() {
  return static_cast<int64_t>(blockIdx.x) * kRowWarps + threadIdx.x / 32;
}
inline dim3 row_grid(int64_t rows) {
  return dim3{static_cast<unsigned>((rows + kRowWarps - 1) / kRowWarps), 1, 1};
}

// Like merge_parts() of merge_device.cuh, for more parts than a register array can have.
template <class Scalar>
__global__ void __launch_bounds__(128) merge_rows(const __grid_constant__ MergeCall call) {
  const int64_t row = row_of_warp();
  if (row >= call.rows) return;
  float largest = -INFINITY;
  int live = 0;
  for (int i = 0; i < call.parts; ++i) {
    const float lse = call.lses[i][row];
    if (lse == -INFINITY) continue;
    ++live;
    if (lse != lse || lse > largest) largest = lse;
  }
  float total = 0.0f;
  for (int i = 0; i < call.parts; ++i) {
    const float lse = call.lses[i][row];
    if (lse != -INFINITY) total += live == 1 ? 1.0f : expf(lse - largest);
  }
  Scalar* out = static_cast<Scalar*>(call.out) + row * call.dim;
  for (int d = lane_of_warp(); d < call.dim; d += 32) {
    float sum = 0.0f;
    for (int i = 0; i < call.parts; ++i) {
      const float lse = call.lses[i][row];
      if (lse == -INFINITY) continue;
      const float value = to_float(static_cast<const Scalar*>(call.outputs[i])[row * call.dim + d]);
      sum = live == 1 ? value : sum + expf(lse - largest) * value;
    }
    out[d] = round_to<Scalar>(live < 2 ? sum : sum / total);
  }
  if (lane_of_warp() == 0) call.lse[row] = live < 2 ? largest : largest + logf(total);
}

template <class Scalar>
__global__ void __launch_bounds__(128) similar_rows(const __grid_constant__ SimilarityCall call) {
  const int64_t row = row_of_warp();
  if (row >= call.rows) return;
  const Scalar* a = static_cast<const Scalar*>(call.a) + row * call.dim;
  const Scalar* b = static_cast<const Scalar*>(call.b) + row * call.dim;
  double sums[3] = {0.0, 0.0, 0.0};  // a . b, a . a, b . b
  for (int d = lane_of_warp(); d < call.dim; d += 32) {
    const double x = to_float(a[d]);
    const double y = to_float(b[d]);
    sums[0] += x * y;
    sums[1] += x * x;
    sums[2] += y * y;
  }
  for (int bit = 16; bit > 0; bit /= 2) {
    for (double& sum : sums) sum += __shfl_xor_sync(~0u, sum, bit);
  }
  if (lane_of_warp() != 0) return;
  const bool zero = sums[1] == 0.0 || sums[2] == 0.0;
  call.cosines[row] = zero ? 0.0f : static_cast<float>(sums[0] / (sqrt(sums[1]) * sqrt(sums[2])));
}

// A bitmap sorts the positions and finds duplicates.
__global__ void __launch_bounds__(256) select_positions(const __grid_constant__ SelectCall call) {
  const int64_t set = blockIdx.x;
  const int sequence = static_cast<int>(set / call.kv_heads);
  const int thread = static_cast<int>(threadIdx.x);
  int32_t* const shared = reinterpret_cast<int32_t*>(dynamic_shared());  // 8 sums, faults
  if (call.dense != nullptr && call.dense[sequence]) {
    if (thread == 0) {
      call.counts[set] = -1;
      call.faults[set] = 0;
    }
    return;
  }
  const int length = call.lengths[sequence];
  const int words = (length + 31) / 32;
  uint32_t* bits = call.bits + set * call.words;
  for (int i = thread; i < words; i += 256) bits[i] = 0;
  if (thread == 0) shared[8] = 0;
  __syncthreads();
  for (int i = thread; i < call.per_set; i += 256) {
    const int32_t position = call.index[set * call.per_set + i];
    if (position == -1) continue;
    if (position < 0 || position >= length) {
      atomicOr(&shared[8], static_cast<int32_t>(kOutside));
      continue;
    }
    const uint32_t bit = uint32_t{1} << (position % 32);
    if ((atomicOr(&bits[position / 32], bit) & bit) != 0) {
      atomicOr(&shared[8], static_cast<int32_t>(kTwice));
    }
  }
  __syncthreads();
  // Thread i has the words [i, i + 1) * share. Its positions start after those of the threads
  // before it.
  const int share = (words + 255) / 256;
  const int begin = thread * share < words ? thread * share : words;
  const int end = begin + share < words ? begin + share : words;
  const auto word_at = [&](int word) {
    uint32_t value = call.selected ? bits[word] : ~bits[word];
    const int left = length - word * 32;
    if (left < 32) value &= (uint32_t{1} << left) - 1;
    return value;
  };
  int count = 0;
  for (int word = begin; word < end; ++word) count += __popc(word_at(word));
  int before = count;
  for (int by = 1; by < 32; by *= 2) {
    const int other = __shfl_up_sync(~0u, before, by);
    if (thread % 32 >= by) before += other;
  }
  if (thread % 32 == 31) shared[thread / 32] = before;
  __syncthreads();
  before -= count;
  for (int warp = 0; warp < thread / 32; ++warp) before += shared[warp];
  int32_t* positions = call.positions + set * call.capacity;
  for (int word = begin; word < end; ++word) {
    for (uint32_t value = word_at(word); value != 0; value &= value - 1) {
      positions[before++] = word * 32 + 31 - __clz(static_cast<int>(value & (0 - value)));
    }
  }
  if (thread == 255) {
    call.counts[set] = before;
    call.faults[set] = shared[8];
  }
}

void launch_merge(const MergeCall& call, void* on) {
  with_type(call.type, [&](auto scalar) {
    launch(merge_rows<decltype(scalar)>, row_grid(call.rows), dim3{32 * kRowWarps, 1, 1}, 0,
           static_cast<Stream>(on), call);
  });
}

void launch_similarity(const SimilarityCall& call, void* on) {
  with_type(call.type, [&](auto scalar) {
    launch(similar_rows<decltype(scalar)>, row_grid(call.rows), dim3{32 * kRowWarps, 1, 1}, 0,
           static_cast<Stream>(on), call);
  });
}

void launch_select(const SelectCall& call, void* on) {
  launch(select_positions, dim3{static_cast<unsigned>(call.sequences * call.kv_heads), 1, 1},
         dim3{256, 1, 1}, 64, static_cast<Stream>(on), call);
}

}  // namespace blockscope::BLOCKSCOPE_BACKEND
