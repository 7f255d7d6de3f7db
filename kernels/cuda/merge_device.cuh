// A warp merges finished (output, lse) pairs; lane i has the channels i, i + 32, ...
// merge_attention and the `out` of split attention use this one implementation, so their results
// are equal bit for bit.
#pragma once

#include <cmath>

#include "kernels/device/device.h"

namespace blockscope::BLOCKSCOPE_BACKEND {

__device__ __forceinline__ float warp_max(float value) {
#pragma unroll
  for (int bit = 16; bit > 0; bit /= 2) value = fmaxf(value, __shfl_xor_sync(~0u, value, bit));
  return value;
}

__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
  for (int bit = 16; bit > 0; bit /= 2) value += __shfl_xor_sync(~0u, value, bit);
  return value;
}

// The largest lse is subtracted first. A part with lse -inf holds no key and is skipped, whatever
// its output is. If only one part is left, its bits are unchanged.
template <int kParts, int kCount>
__device__ __forceinline__ float merge_parts(const float (&parts)[kParts][kCount],
                                             const float (&lses)[kParts], float (&out)[kCount]) {
  float largest = -INFINITY;
  int live = 0;
#pragma unroll
  for (int i = 0; i < kParts; ++i) {
    if (lses[i] == -INFINITY) continue;
    ++live;
    if (lses[i] != lses[i] || lses[i] > largest) largest = lses[i];
  }
  float total = 0.0f;
#pragma unroll
  for (int n = 0; n < kCount; ++n) out[n] = 0.0f;
  if (live == 0) return -INFINITY;
#pragma unroll
  for (int i = 0; i < kParts; ++i) {
    if (lses[i] == -INFINITY) continue;
    const float weight = live == 1 ? 1.0f : expf(lses[i] - largest);
    total += weight;
#pragma unroll
    for (int n = 0; n < kCount; ++n) out[n] += weight * parts[i][n];
  }
  if (live == 1) return largest;
#pragma unroll
  for (int n = 0; n < kCount; ++n) out[n] /= total;
  return largest + logf(total);
}

}  // namespace blockscope::BLOCKSCOPE_BACKEND
