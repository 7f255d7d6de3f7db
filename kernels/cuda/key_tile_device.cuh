// Scores of query rows with a range of keys on tensor cores, without values: the pipeline of
// kernels that need only weights. Shared memory holds the queries, then kStages key tiles.
#pragma once

#include "kernels/cuda/split_tile_device.cuh"

namespace blockscope::BLOCKSCOPE_BACKEND {

template <class Shape>
constexpr int kKeyTilesEnd = Shape::kQueryBytes + Shape::kStages* Shape::kTileBytes;

// Calls work(first, scores) for each kStep keys of the span, with `first` counted from the span's
// begin. The queries are in shared memory, or their copies are issued but not committed. Warps for
// which `works` is false only copy.
template <class Shape, class Work>
__device__ __forceinline__ void score_span(const KeySpan<typename Shape::Scalar>& span, bool works,
                                           const Work& work) {
  const int num_keys = span.end - span.begin;
  const int num_tiles = (num_keys + Shape::kKeys - 1) / Shape::kKeys;
  const auto stage_of = [&](int tile) {
    return Shape::kQueryBytes + tile % Shape::kStages * Shape::kTileBytes;
  };
  const auto bring = [&](int tile) {
    if (tile < num_tiles) {
      copy_tile<Shape>(stage_of(tile), span.keys, span.key_stride, span,
                       span.begin + tile * Shape::kKeys);
    }
    copy_async_commit();  // also an empty group, because waits count groups
  };
#pragma unroll 1
  for (int tile = 0; tile < Shape::kStages - 1; ++tile) bring(tile);
  const int queries =
      static_cast<int>(threadIdx.x) / 32 * Shape::kWarpRows * Shape::kPitch + rows_first<Shape>();
  uint32_t held[Shape::kHoldQueries ? Shape::kRowTiles : 1]
               [Shape::kHoldQueries ? Shape::kDim / 16 : 1][4];
#pragma unroll 1
  for (int tile = 0; tile < num_tiles; ++tile) {
    copy_async_wait<Shape::kStages - 2>();
    __syncthreads();  // all threads see the tile, and the previous tile's place is free
    bring(tile + Shape::kStages - 1);
    if (!works) continue;
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
      float scores[Shape::kRowTiles][Shape::kStep / 8][4];
      score_step<Shape>(scores, queries, held,
                        stage_of(tile) + step * Shape::kPitch + channels_first<Shape>());
      work(tile * Shape::kKeys + step, scores);
    }
  }
  copy_async_wait<0>();
}

}  // namespace blockscope::BLOCKSCOPE_BACKEND
