// Attention over the internal keys, joined with an external pair that another kernel or an earlier
// step computed. The internal keys are few, so multiply-adds in float32 are fast enough; what
// counts is to wait for memory once. A thread block has kJoinRows rows (g * T + t) of a KV head, a
// warp two of them.
#pragma once

#include <cmath>

#include "kernels/cuda/device_calls.h"
#include "kernels/cuda/merge_device.cuh"
#include "kernels/cuda/split_span_device.cuh"
#include "kernels/cuda/split_tile_device.cuh"
#include "kernels/cuda/typed_device.cuh"

namespace blockscope::BLOCKSCOPE_BACKEND {

constexpr int kJoinWarps = 4;
constexpr int kJoinWarpRows = 2;
constexpr int kJoinRows = kJoinWarps * kJoinWarpRows;
constexpr int kJoinKeys = 32;  // keys in shared memory at a time: one per lane

// Shared memory: the keys, their values, then the queries as float32. Rows of keys and values are
// 16 bytes longer than needed, so that the lanes' 16-byte reads of different rows meet in no bank.
template <class Scalar_, int kDim_>
struct JoinTile {
  using Scalar = Scalar_;
  static constexpr int kDim = kDim_;
  static constexpr int kPitch = kDim * 2 + 16;  // bytes
  static constexpr int kValues = kJoinKeys * kPitch;
  static constexpr int kQueries = 2 * kValues;
  static constexpr int kSharedBytes = kQueries + kJoinRows * kDim * 4;
  static constexpr int kOwn = kDim / 32;  // channels of a lane: pairs, 64 apart
};

// The channel of a lane's n-th value.
__device__ __forceinline__ int joined_channel(int n) {
  return n / 2 * 64 + lane_of_warp() * 2 + n % 2;
}

// The query head of a row.
__device__ __forceinline__ int joined_head(const SplitCall& call, int kv_head, int in_group) {
  return kv_head * call.group + in_group / call.queries;
}

// Two rows of a warp: the part of the keys so far, relative to the largest score.
template <class Tile>
struct JoinState {
  float output[kJoinWarpRows][Tile::kOwn];
  float largest[kJoinWarpRows];
  float total[kJoinWarpRows];
};

template <class Tile>
__device__ __forceinline__ void bring_keys(const SplitCall& call, int sequence, int kv_head,
                                           int first, int count) {
  using Scalar = typename Tile::Scalar;
  constexpr int kPieces = Tile::kDim / 8;
  const Scalar* keys = row_at<Scalar>(call.k_in, sequence, kv_head, first);
  const Scalar* values = row_at<Scalar>(call.v_in, sequence, kv_head, first);
  const bool aligned = is_aligned<Scalar>(call.k_in) && is_aligned<Scalar>(call.v_in);
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < kJoinKeys * kPieces; i += 32 * kJoinWarps) {
    const int row = i / kPieces;
    const int column = i % kPieces * 8;
    const bool present = row < count;
    const int64_t from = present ? row : 0;
    char* const to = dynamic_shared() + row * Tile::kPitch + column * 2;
    copy_piece(to, keys + from * call.k_in.row, column, call.dim, present, aligned);
    copy_piece(to + Tile::kValues, values + from * call.v_in.row, column, call.dim, present,
               aligned);
  }
  copy_async_commit();
}

// The block's queries as float32. All loads are issued before the first is needed.
template <class Tile>
__device__ __forceinline__ void bring_queries(const SplitCall& call, int sequence, int kv_head,
                                              int first_row) {
  using Scalar = typename Tile::Scalar;
  constexpr int kTurns = kJoinRows * Tile::kDim / (32 * kJoinWarps);
  const int rows = call.group * call.queries - first_row;
  Scalar values[kTurns];
#pragma unroll
  for (int i = 0; i < kTurns; ++i) {
    const int at = i * 32 * kJoinWarps + static_cast<int>(threadIdx.x);
    const int row = at / Tile::kDim;
    const int d = at % Tile::kDim;
    const int in_group = first_row + (row < rows ? row : 0);
    const int head = joined_head(call, kv_head, in_group);
    const Scalar* query = row_at<Scalar>(call.q, sequence, head, in_group % call.queries);
    values[i] = d < call.dim ? query[d] : Scalar{0};
  }
  auto* const queries = reinterpret_cast<float*>(dynamic_shared() + Tile::kQueries);
#pragma unroll
  for (int i = 0; i < kTurns; ++i) {
    queries[i * 32 * kJoinWarps + static_cast<int>(threadIdx.x)] = to_float(values[i]);
  }
}

// Scores of the lane's key with the warp's two rows.
template <class Tile>
__device__ __forceinline__ void score_key(float (&scores)[kJoinWarpRows]) {
  using Scalar = typename Tile::Scalar;
  const auto* key =
      reinterpret_cast<const uint32_t*>(dynamic_shared() + lane_of_warp() * Tile::kPitch);
  const auto* queries = reinterpret_cast<const float*>(dynamic_shared() + Tile::kQueries) +
                        threadIdx.x / 32 * kJoinWarpRows * Tile::kDim;
#pragma unroll
  for (int r = 0; r < kJoinWarpRows; ++r) scores[r] = 0.0f;
#pragma unroll 4
  for (int i = 0; i < Tile::kDim / 2; i += 4) {
    const float4 words = *reinterpret_cast<const float4*>(key + i);
    const uint32_t pairs[4] = {__float_as_uint(words.x), __float_as_uint(words.y),
                               __float_as_uint(words.z), __float_as_uint(words.w)};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
      for (int r = 0; r < kJoinWarpRows; ++r) {
        const float* query = queries + r * Tile::kDim + (i + j) * 2;
        scores[r] +=
            query[0] * unpack_low(pairs[j], Scalar{}) + query[1] * unpack_high(pairs[j], Scalar{});
      }
    }
  }
}

template <class Tile>
__device__ __forceinline__ void attend_keys(float scale_log2, int count, JoinState<Tile>& state) {
  using Scalar = typename Tile::Scalar;
  float weights[kJoinWarpRows];
  score_key<Tile>(weights);
#pragma unroll
  for (int r = 0; r < kJoinWarpRows; ++r) {
    const float score = lane_of_warp() < count ? weights[r] * scale_log2 : -INFINITY;
    const float before = state.largest[r];
    state.largest[r] = fmaxf(before, warp_max(score));  // NaN is handled by the weights
    const float shift = state.largest[r] == -INFINITY ? 0.0f : state.largest[r];
    const float factor = exp2_flushed(before - shift);
    weights[r] = exp2_flushed(score - shift);
    state.total[r] = state.total[r] * factor + warp_sum(weights[r]);
#pragma unroll
    for (int n = 0; n < Tile::kOwn; ++n) state.output[r][n] *= factor;
  }
#pragma unroll 8
  for (int key = 0; key < count; ++key) {
    const auto* value =
        reinterpret_cast<const uint32_t*>(dynamic_shared() + Tile::kValues + key * Tile::kPitch);
    uint32_t pairs[Tile::kOwn / 2];
#pragma unroll
    for (int n = 0; n < Tile::kOwn / 2; ++n) pairs[n] = value[n * 32 + lane_of_warp()];
#pragma unroll
    for (int r = 0; r < kJoinWarpRows; ++r) {
      const float weight = __shfl_sync(~0u, weights[r], key);
#pragma unroll
      for (int n = 0; n < Tile::kOwn / 2; ++n) {
        state.output[r][n * 2] += weight * unpack_low(pairs[n], Scalar{});
        state.output[r][n * 2 + 1] += weight * unpack_high(pairs[n], Scalar{});
      }
    }
  }
}

// The place of a row in [S, H, T].
__device__ __forceinline__ int64_t joined_row(const SplitCall& call, int sequence, int kv_head,
                                              int in_group) {
  const int64_t head = static_cast<int64_t>(sequence) * call.heads;
  return (head + joined_head(call, kv_head, in_group)) * call.queries + in_group % call.queries;
}

// The external pair of a row.
template <class Tile>
struct JoinedPair {
  float output[Tile::kOwn];
  float lse;
};

template <class Tile>
__device__ __forceinline__ JoinedPair<Tile> load_pair(const JoinCall& join, int sequence,
                                                      int kv_head, int in_group) {
  using Scalar = typename Tile::Scalar;
  const SplitCall& call = join.attention;
  JoinedPair<Tile> pair;
  if (external_place(call, sequence, joined_head(call, kv_head, in_group), 0) < 0) {
    const int64_t row = joined_row(call, sequence, kv_head, in_group);
#pragma unroll
    for (int n = 0; n < Tile::kOwn; ++n) {
      const int d = joined_channel(n);
      pair.output[n] = d < call.dim ? call.cached_external[row * call.dim + d] : 0.0f;
    }
    pair.lse = call.cached_lse[row];
    return pair;
  }
  const Scalar* external = row_at<Scalar>(join.external, sequence, kv_head, in_group);
#pragma unroll
  for (int n = 0; n < Tile::kOwn; ++n) {
    const int d = joined_channel(n);
    pair.output[n] = d < call.dim ? to_float(external[d]) : 0.0f;
  }
  pair.lse = *row_at<float>(join.lse_external, sequence, kv_head, in_group);
  return pair;
}

// Finishes a row: divides, joins and writes.
template <class Tile>
__device__ __forceinline__ void finish_join(const JoinCall& join, int sequence, int kv_head,
                                            int in_group, const JoinedPair<Tile>& external,
                                            const float (&inside)[Tile::kOwn], float largest,
                                            float total) {
  using Scalar = typename Tile::Scalar;
  const SplitCall& call = join.attention;
  float parts[2][Tile::kOwn];
#pragma unroll
  for (int n = 0; n < Tile::kOwn; ++n) {
    parts[0][n] = external.output[n];
    parts[1][n] = total == 0.0f ? 0.0f : inside[n] / total;
  }
  // total 0: no key, or only -inf scores
  const float lses[2] = {
      external.lse, total == 0.0f ? -INFINITY : (largest + log2f(total)) * 0.6931471805599453f};
  float merged[Tile::kOwn];
  merge_parts(parts, lses, merged);
  const int t = in_group % call.queries;
  const int head = joined_head(call, kv_head, in_group);
  const int64_t row = joined_row(call, sequence, kv_head, in_group);
  Scalar* out =
      static_cast<Scalar*>(call.out) +
      ((static_cast<int64_t>(sequence) * call.queries + t) * call.heads + head) * call.dim;
#pragma unroll
  for (int n = 0; n < Tile::kOwn; ++n) {
    const int d = joined_channel(n);
    if (d >= call.dim) break;
    call.external[row * call.dim + d] = parts[0][n];
    call.internal[row * call.dim + d] = parts[1][n];
    out[d] = round_to<Scalar>(merged[n]);
  }
  if (lane_of_warp() == 0) {
    call.lse_external[row] = lses[0];
    call.lse_internal[row] = lses[1];
  }
}

// blockIdx is (tile of rows, KV head, sequence).
template <class Tile>
__global__ void __launch_bounds__(32 * kJoinWarps, 4)
    join_rows(const __grid_constant__ JoinCall join) {
  const SplitCall& call = join.attention;
  const int sequence = static_cast<int>(blockIdx.z);
  const int kv_head = static_cast<int>(blockIdx.y);
  const int first_row = static_cast<int>(blockIdx.x) * kJoinRows;
  const int rows = call.group * call.queries - first_row;
  const int warp_row = static_cast<int>(threadIdx.x) / 32 * kJoinWarpRows;
  const auto bring = [&](int first) {
    const int left = call.internal_keys - first;
    bring_keys<Tile>(call, sequence, kv_head, first, left < kJoinKeys ? left : kJoinKeys);
  };
  // Everything that the first keys wait for is asked for at once, after the flag of a head's reuse.
  if (call.internal_keys > 0) bring(0);
  JoinedPair<Tile> pairs[kJoinWarpRows];
#pragma unroll
  for (int r = 0; r < kJoinWarpRows; ++r) {
    const int row = warp_row + r < rows ? warp_row + r : 0;
    pairs[r] = load_pair<Tile>(join, sequence, kv_head, first_row + row);
  }
  bring_queries<Tile>(call, sequence, kv_head, first_row);
  JoinState<Tile> state;
#pragma unroll
  for (int r = 0; r < kJoinWarpRows; ++r) {
    state.largest[r] = -INFINITY;
    state.total[r] = 0.0f;
#pragma unroll
    for (int n = 0; n < Tile::kOwn; ++n) state.output[r][n] = 0.0f;
  }
#pragma unroll 1
  for (int first = 0; first < call.internal_keys; first += kJoinKeys) {
    if (first > 0) bring(first);
    const int left = call.internal_keys - first;
    copy_async_wait<0>();
    __syncthreads();
    attend_keys<Tile>(call.scale_log2, left < kJoinKeys ? left : kJoinKeys, state);
    __syncthreads();  // before the next keys take the place of these
  }
#pragma unroll
  for (int r = 0; r < kJoinWarpRows; ++r) {
    if (warp_row + r >= rows) continue;
    finish_join<Tile>(join, sequence, kv_head, first_row + warp_row + r, pairs[r], state.output[r],
                      state.largest[r], state.total[r]);
  }
  if (call.keys_read != nullptr && threadIdx.x == 0 && first_row == 0) {
    call.keys_read[static_cast<int64_t>(sequence) * call.kv_heads + kv_head] =
        prefix_length(call, sequence, kv_head);
  }
}

template <class Tile>
void launch_join_tile(const JoinCall& join, Stream stream) {
  const SplitCall& call = join.attention;
  const int tiles = (call.group * call.queries + kJoinRows - 1) / kJoinRows;
  launch(join_rows<Tile>,
         dim3{static_cast<unsigned>(tiles), static_cast<unsigned>(call.kv_heads),
              static_cast<unsigned>(call.sequences)},
         dim3{32 * kJoinWarps, 1, 1}, Tile::kSharedBytes, stream, join);
}

template <class Scalar>
void launch_join_of(const JoinCall& join, Stream stream) {
  switch (padded_dim(join.attention.dim)) {
    case 64:
      return launch_join_tile<JoinTile<Scalar, 64>>(join, stream);
    case 128:
      return launch_join_tile<JoinTile<Scalar, 128>>(join, stream);
    default:
      return launch_join_tile<JoinTile<Scalar, 256>>(join, stream);
  }
}

// The library's kernels have 16-bit types.
void launch_join(const JoinCall& join, void* on) {
  const auto stream = static_cast<Stream>(on);
  if (join.attention.type == DeviceFloat::kFloat16) return launch_join_of<Half>(join, stream);
  launch_join_of<BFloat16>(join, stream);
}

}  // namespace blockscope::BLOCKSCOPE_BACKEND
