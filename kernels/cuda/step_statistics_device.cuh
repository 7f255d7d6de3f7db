// The statistics between two steps (step_statistics.h), with a thread block per head and a warp per
// row. Sums of a row are float32, as on the CPU; cosines are double.
#pragma once

#include <cmath>

#include "kernels/cuda/device_calls.h"
#include "kernels/cuda/merge_device.cuh"
#include "kernels/cuda/typed_device.cuh"

namespace blockscope::BLOCKSCOPE_BACKEND {

constexpr int kStatisticsWarps = 8;
constexpr int kGapWarps = 16;
constexpr int kErrors = 4;  // of a source: the members of ErrorSums
constexpr int kKept = 5;    // of a kind of rows: those of KeptSums
constexpr int kSourceSums = kErrors + 3 * kKept;
// A warp's sums: internal cosine, mass and external cosine with their rows, then the sources.
constexpr int kFirstSource = 6;
constexpr int kStepSums = kFirstSource + kMaxSources * kSourceSums;

__device__ __forceinline__ float row_cosine(const float* a, const float* b, int dim) {
  double sums[3] = {0.0, 0.0, 0.0};  // a . b, a . a, b . b
  for (int d = lane_of_warp(); d < dim; d += 32) {
    const double x = a[d];
    const double y = b[d];
    sums[0] += x * y;
    sums[1] += x * x;
    sums[2] += y * y;
  }
  for (int bit = 16; bit > 0; bit /= 2) {
    for (double& sum : sums) sum += __shfl_xor_sync(~0u, sum, bit);
  }
  const bool zero = sums[1] == 0.0 || sums[2] == 0.0;
  return zero ? 0.0f : static_cast<float>(sums[0] / (sqrt(sums[1]) * sqrt(sums[2])));
}

// The weight of the external side in the merge with the internal side.
__device__ __forceinline__ float external_share(float lse_external, float lse_internal) {
  if (lse_external == -INFINITY) return 0.0f;
  return 1.0f / (1.0f + expf(lse_internal - lse_external));
}

// Adds a term that is no NaN to `sums`, and its row.
__device__ __forceinline__ void add_term(float* sums, float term) {
  if (lane_of_warp() != 0 || term != term) return;
  sums[0] += term;
  sums[1] += 1.0f;
}

__device__ __forceinline__ void add_source(const StatisticsCall& call, int t, int64_t row,
                                           float share, int kind, float* sums) {
  const StatisticsCall::Pair& source = call.source[t];
  const float source_share = external_share(source.lse[row], call.internal.lse[row]);
  if (share != share || source_share != source_share) return;
  const float* const in = call.internal.output + row * call.dim;
  const float* const now = call.external.output + row * call.dim;
  const float* const then = source.output + row * call.dim;
  float errors[kErrors] = {0.0f, 0.0f, 0.0f, 0.0f};
  float products[3] = {0.0f, 0.0f, 0.0f};  // source . external, and their squares
  for (int d = lane_of_warp(); d < call.dim; d += 32) {
    const float ref = in[d] + share * (now[d] - in[d]);
    const float got = in[d] + source_share * (then[d] - in[d]);
    errors[0] += (got - ref) * (got - ref);
    errors[1] += fabsf(got - ref);
    errors[2] += ref * ref;
    errors[3] += ref * got;
    products[0] += then[d] * now[d];
    products[1] += then[d] * then[d];
    products[2] += now[d] * now[d];
  }
  for (float& sum : errors) sum = warp_sum(sum);
  for (float& sum : products) sum = warp_sum(sum);
  if (lane_of_warp() != 0) return;
  for (int i = 0; i < kErrors; ++i) sums[i] += errors[i];
  if (!call.has_kinds[t]) return;
  const float change = source.lse[row] - call.external.lse[row];
  if (change - change != 0.0f) return;  // weights that are no NaN allow -inf
  float* const kept = sums + kErrors + kind * kKept;
  const double squares = static_cast<double>(products[1]) * static_cast<double>(products[2]);
  kept[0] += 1.0f;
  if (squares != 0.0) kept[1] += static_cast<float>(products[0] / sqrt(squares));
  kept[2] += fabsf(change);
  kept[3] += errors[0];
  kept[4] += errors[2];
}

__global__ void __launch_bounds__(32 * kStatisticsWarps)
    compare_steps(const __grid_constant__ StatisticsCall call) {
  const int head = static_cast<int>(blockIdx.x);
  const int thread = static_cast<int>(threadIdx.x);
  float* const shared = reinterpret_cast<float*>(dynamic_shared());  // [warps, kStepSums]
  for (int i = thread; i < kStatisticsWarps * kStepSums; i += 32 * kStatisticsWarps) {
    shared[i] = 0.0f;
  }
  __syncthreads();
  float* const sums = shared + thread / 32 * kStepSums;
  for (int r = thread / 32; r < call.block; r += kStatisticsWarps) {
    const int64_t row = static_cast<int64_t>(head) * call.block + r;
    const int64_t at = row * call.dim;
    if (call.last_internal != nullptr) {
      add_term(sums, row_cosine(call.internal.output + at, call.last_internal + at, call.dim));
    }
    if (call.external.output == nullptr) continue;
    const float share = external_share(call.external.lse[row], call.internal.lse[row]);
    add_term(sums + 2, share);
    if (call.last_external != nullptr) {
      add_term(sums + 4, row_cosine(call.external.output + at, call.last_external + at, call.dim));
    }
    for (int t = 0; t < call.sources; ++t) {
      if (call.first_alike[t] != t) continue;
      constexpr int kRowsOfWord = 32 / kRowKindBits;
      const int kind =
          static_cast<int>(call.kinds[t][r / kRowsOfWord] >> (r % kRowsOfWord * kRowKindBits)) & 3;
      add_source(call, t, row, share, kind, sums + kFirstSource + t * kSourceSums);
    }
  }
  __syncthreads();
  for (int i = thread; i < kStepSums; i += 32 * kStatisticsWarps) {
    float total = 0.0f;
    for (int warp = 0; warp < kStatisticsWarps; ++warp) total += shared[warp * kStepSums + i];
    shared[i] = total;  // only this thread reads the column
  }
  __syncthreads();
  if (thread == 0) {
    if (call.similarity_internal != nullptr) call.similarity_internal[head] = shared[0] / shared[1];
    if (call.external_mass != nullptr) call.external_mass[head] = shared[2] / shared[3];
    if (call.similarity_external != nullptr) call.similarity_external[head] = shared[4] / shared[5];
  }
  for (int t = 0; t < call.sources; ++t) {
    const float* const of_source = shared + kFirstSource + call.first_alike[t] * kSourceSums;
    const int64_t place = static_cast<int64_t>(t) * call.heads + head;
    if (thread < kErrors) call.reuse_error[place * kErrors + thread] = of_source[thread];
    if (call.kept == nullptr || thread >= 3 * kKept) continue;
    call.kept[place * 3 * kKept + thread] = call.has_kinds[t] ? of_source[kErrors + thread] : NAN;
  }
}

// 1 / |x|, or NaN: as unit_scale of statistics_kernels.h.
__device__ __forceinline__ float unit_factor(float squares) {
  const float norm = sqrtf(squares);
  return 1.0f / (norm <= 1e-30f ? 1e-30f : norm);
}

template <class Scalar>
__global__ void __launch_bounds__(32 * kGapWarps)
    compare_rows(const __grid_constant__ GapsCall call) {
  const int head = static_cast<int>(blockIdx.x);
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / 32;
  // [block] factors of x, NaN: the row is left out; [block] of `first`; [warps] gaps; rows; squares
  float* const factor = reinterpret_cast<float*>(dynamic_shared());
  float* const first_factor = factor + call.block;
  float* const sums = first_factor + call.block;
  const auto* const first =
      static_cast<const Scalar*>(call.first) + static_cast<int64_t>(head) * call.block * call.dim;
  float gaps = 0.0f;
  float rows = 0.0f;
  for (int r = warp; r < call.block; r += kGapWarps) {
    const Scalar* const a = row_at<Scalar>(call.x, 0, head, r);
    const Scalar* const b = first + static_cast<int64_t>(r) * call.dim;
    float squares[2] = {0.0f, 0.0f};
    for (int d = lane_of_warp(); d < call.dim; d += 32) {
      const float x = to_float(a[d]);
      const float y = to_float(b[d]);
      squares[0] += x * x;
      squares[1] += y * y;
    }
    const float by = unit_factor(warp_sum(squares[0]));
    const float first_by = unit_factor(warp_sum(squares[1]));
    float gap = 0.0f;
    for (int d = lane_of_warp(); d < call.dim; d += 32) {
      const float difference = to_float(a[d]) * by - to_float(b[d]) * first_by;
      gap += difference * difference;
    }
    gap = warp_sum(gap);
    const bool valid = by == by && first_by == first_by;
    if (valid) {
      gaps += sqrtf(gap);
      rows += 1.0f;
    }
    if (lane_of_warp() == 0) {
      factor[r] = valid ? by : NAN;
      first_factor[r] = first_by;
    }
  }
  if (lane_of_warp() == 0) {
    sums[warp] = gaps;
    sums[kGapWarps + warp] = rows;
  }
  __syncthreads();
  float squares = 0.0f;
  for (int d = thread; d < call.dim; d += 32 * kGapWarps) {
    float difference = 0.0f;
    for (int r = 0; r < call.block; ++r) {
      if (factor[r] != factor[r]) continue;
      difference += to_float(row_at<Scalar>(call.x, 0, head, r)[d]) * factor[r] -
                    to_float(first[static_cast<int64_t>(r) * call.dim + d]) * first_factor[r];
    }
    squares += difference * difference;
  }
  squares = warp_sum(squares);
  if (lane_of_warp() == 0) sums[2 * kGapWarps + warp] = squares;
  __syncthreads();
  if (thread != 0) return;
  float totals[3] = {0.0f, 0.0f, 0.0f};
  for (int i = 0; i < 3 * kGapWarps; ++i) totals[i / kGapWarps] += sums[i];
  call.gap[head] = totals[0] / totals[1];
  call.block_gap[head] = sqrtf(totals[2]) / totals[1];
}

void launch_statistics(const StatisticsCall& call, void* on) {
  launch(compare_steps, dim3{static_cast<unsigned>(call.heads), 1, 1},
         dim3{32 * kStatisticsWarps, 1, 1}, kStatisticsWarps * kStepSums * sizeof(float),
         static_cast<Stream>(on), call);
}

void launch_gaps(const GapsCall& call, void* on) {
  with_type(call.type, [&](auto scalar) {
    launch(compare_rows<decltype(scalar)>, dim3{static_cast<unsigned>(call.heads), 1, 1},
           dim3{32 * kGapWarps, 1, 1}, (2 * call.block + 3 * kGapWarps) * sizeof(float),
           static_cast<Stream>(on), call);
  });
}

}  // namespace blockscope::BLOCKSCOPE_BACKEND
