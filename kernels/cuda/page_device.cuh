// page_bounds has a thread for each channel of a page; page_scores has a warp for each page.
#pragma once

#include <cmath>

#include "kernels/cuda/device_calls.h"
#include "kernels/cuda/merge_device.cuh"
#include "kernels/cuda/row_device.cuh"

namespace blockscope::BLOCKSCOPE_BACKEND {

template <class Scalar>
__global__ void __launch_bounds__(128) bound_pages(const __grid_constant__ BoundsCall call) {
  const int64_t head = blockIdx.y;
  const int64_t page = blockIdx.x;
  const int64_t sequence = head / call.kv_heads;
  const int64_t length = call.lengths[sequence];
  const int64_t begin = page * call.page_size;
  const int64_t end = begin + call.page_size < length ? begin + call.page_size : length;
  for (int d = static_cast<int>(threadIdx.x); d < call.dim; d += 128) {
    float most = 0.0f;
    float least = 0.0f;
    for (int64_t key = begin; key < end; ++key) {
      const float value =
          to_float(row_at<Scalar>(call.k_ext, sequence, head % call.kv_heads, key)[d]);
      // The comparison keeps NaN: a page with a NaN has no bound.
      most = key > begin && (value <= most || most != most) ? most : value;
      least = key > begin && (value >= least || least != least) ? least : value;
    }
    const int64_t at = (head * call.pages + page) * call.dim + d;
    static_cast<Scalar*>(call.max)[at] = round_to<Scalar>(most);  // widening was exact
    static_cast<Scalar*>(call.min)[at] = round_to<Scalar>(least);
  }
}

// A thread block for each set of queries.
template <class Scalar>
__global__ void __launch_bounds__(128) signed_parts(const __grid_constant__ PageScoresCall call) {
  const int64_t set = blockIdx.x;  // set number over all KV heads
  const int64_t kv_head = set / call.num_sets % call.kv_heads;
  const int64_t sequence = set / call.num_sets / call.kv_heads;
  const int first = static_cast<int>(set % call.num_sets) * call.tokens;
  for (int d = static_cast<int>(threadIdx.x); d < call.dim; d += 128) {
    float positive = 0.0f;
    float negative = 0.0f;
    for (int g = 0; g < call.group; ++g) {
      for (int t = first; t < first + call.tokens; ++t) {
        const float value =
            to_float(row_at<Scalar>(call.q, sequence, kv_head * call.group + g, t)[d]);
        positive += value > 0.0f ? value : 0.0f;
        negative += value > 0.0f ? 0.0f : value;  // NaN goes here
      }
    }
    const float count = static_cast<float>(call.group) * static_cast<float>(call.tokens);
    call.parts[set * 2 * call.dim + d] = positive / count;
    call.parts[(set * 2 + 1) * call.dim + d] = negative / count;
  }
}

template <class Scalar>
__global__ void __launch_bounds__(128) score_pages(const __grid_constant__ PageScoresCall call) {
  const int64_t page = row_of_warp();
  const int64_t set = blockIdx.y;
  if (page >= call.pages) return;
  const int64_t kv_head = set / call.num_sets % call.kv_heads;
  const int64_t sequence = set / call.num_sets / call.kv_heads;
  float score = -INFINITY;
  if (page * call.page_size < call.lengths[sequence]) {
    const Scalar* max = row_at<Scalar>(call.max, sequence, kv_head, page);
    const Scalar* min = row_at<Scalar>(call.min, sequence, kv_head, page);
    const float* positive = call.parts + set * 2 * call.dim;
    float sum = 0.0f;
    for (int d = lane_of_warp(); d < call.dim; d += 32) {
      sum += positive[d] * to_float(max[d]) + positive[call.dim + d] * to_float(min[d]);
    }
    score = warp_sum(sum);
  }
  if (lane_of_warp() == 0) call.scores[set * call.pages + page] = score;
}

void launch_bounds(const BoundsCall& call, void* on) {
  const dim3 grid{static_cast<unsigned>(call.pages),
                  static_cast<unsigned>(call.sequences * call.kv_heads), 1};
  with_type(call.type, [&](auto scalar) {
    launch(bound_pages<decltype(scalar)>, grid, dim3{128, 1, 1}, 0, static_cast<Stream>(on), call);
  });
}

void launch_page_scores(const PageScoresCall& call, void* on) {
  const auto sets = static_cast<unsigned>(call.sequences * call.kv_heads * call.num_sets);
  with_type(call.type, [&](auto scalar) {
    const auto stream = static_cast<Stream>(on);
    launch(signed_parts<decltype(scalar)>, dim3{sets, 1, 1}, dim3{128, 1, 1}, 0, stream, call);
    launch(score_pages<decltype(scalar)>, dim3{row_grid(call.pages).x, sets, 1}, dim3{128, 1, 1}, 0,
           stream, call);
  });
}

}  // namespace blockscope::BLOCKSCOPE_BACKEND
