// The kernels of split_attention and their launches, compiled once per backend.
// split_attention_launch.h says how they share the work.
#pragma once

#include "kernels/cuda/device_calls.h"
#include "kernels/cuda/merge_device.cuh"
#include "kernels/cuda/split_floats_device.cuh"
#include "kernels/cuda/split_span_device.cuh"
#include "kernels/cuda/split_tile_device.cuh"
#include "kernels/cuda/typed_device.cuh"

namespace blockscope::BLOCKSCOPE_BACKEND {

// The part of a thread block: blockIdx is (chunk, KV head * row tiles + row tile, sequence).
struct Place {
  int sequence;
  int kv_head;
  int first_row;         // among the KV head's G * T rows
  int num_rows;          // rows of the KV head
  int end_row;           // end of those that read this chunk, in their order
  int64_t state;         // index of the state of row 0
  const int32_t* order;  // the rows that read this chunk; null: all rows
};

// kListed: SplitCall::rows may be there.
template <bool kListed>
__device__ __forceinline__ Place place_of(const SplitCall& call, int rows_per_tile) {
  Place place;
  place.num_rows = call.group * call.queries;
  const int tiles = (place.num_rows + rows_per_tile - 1) / rows_per_tile;
  place.sequence = static_cast<int>(blockIdx.z);
  place.kv_head = static_cast<int>(blockIdx.y) / tiles;
  place.first_row = static_cast<int>(blockIdx.y) % tiles * rows_per_tile;
  const int64_t head = static_cast<int64_t>(place.sequence) * call.kv_heads + place.kv_head;
  place.state = (head * (call.max_chunks + 1) + blockIdx.x) * place.num_rows;
  place.end_row = place.num_rows;
  place.order = nullptr;
  if (kListed && call.rows != nullptr && static_cast<int>(blockIdx.x) < call.max_chunks) {
    const int32_t* rows = reading_rows(call, place.sequence, place.kv_head);
    place.end_row = rows[0];
    place.order = rows + 1;
  }
  return place;
}

// The row of the KV head that a block has as its row `row`.
__device__ __forceinline__ int row_of(const Place& place, int row) {
  const int at = place.first_row + row;
  return place.order == nullptr ? at : place.order[at];
}

// The query of a row of a KV head.
template <class Scalar>
__device__ __forceinline__ const Scalar* query_of(const SplitCall& call, const Place& place,
                                                  int row) {
  const int head = place.kv_head * call.group + row / call.queries;
  return row_at<Scalar>(call.q, place.sequence, head, row % call.queries);
}

template <class Shape>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kThreads == 128 ? 2 : 1)
    split_tiles(const __grid_constant__ SplitCall call) {
  using Scalar = typename Shape::Scalar;
  const Place place = place_of<true>(call, Shape::kRows);
  const KeySpan<Scalar> span = span_of<Scalar>(call, place.sequence, place.kv_head);
  if (span.begin >= span.end || place.first_row >= place.end_row) return;
  static_assert(sizeof(KeySpan<Scalar>) + sizeof(int) <= Shape::kSharedBytes - Shape::kSpanOffset);
  int* const shared_readers =
      reinterpret_cast<int*>(dynamic_shared() + Shape::kSpanOffset + sizeof(KeySpan<Scalar>));
  if (threadIdx.x == 0) {
    *reinterpret_cast<KeySpan<Scalar>*>(dynamic_shared() + Shape::kSpanOffset) = span;
    *shared_readers = place.end_row - place.first_row;
  }
  const bool aligned = is_aligned<Scalar>(call.q);
  // States after those of the readers are never read. Leaving them out would need a register.
  const int rows = place.num_rows - place.first_row;
  const int readers = place.end_row - place.first_row;
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < Shape::kRows * Shape::kPieces;
       i += Shape::kThreads) {
    const int row = i / Shape::kPieces;
    const int piece = i % Shape::kPieces;
    const bool present = row < readers;
    copy_piece(dynamic_shared() + piece_at<Shape>(row, piece),
               query_of<Scalar>(call, place, present ? row_of(place, row) : 0), piece * 8, call.dim,
               present, aligned);
  }
  __syncthreads();  // all threads see the span
  const int warp_row = static_cast<int>(threadIdx.x) / 32 * Shape::kWarpRows;
  WarpState<Shape> state;
  clear(state);
  attend_span<Shape>(
      call.scale_log2, [&](int) { return warp_row < *shared_readers; },
      [](int, int, int, int left) { return left; }, state);

  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t states = num_states(call);
#pragma unroll
  for (int t = 0; t < Shape::kRowTiles; ++t) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sum = state.sum[t][half];
      sum += __shfl_xor_sync(~0u, sum, 1);
      sum += __shfl_xor_sync(~0u, sum, 2);
      const int row = warp_row + t * 16 + half * 8 + lane / 4;
      if (row >= rows) continue;
      const int64_t index = place.state + place.first_row + row;
      float* output = call.states + index * Shape::kDim + lane % 4 * 2;
#pragma unroll
      for (int n = 0; n < Shape::kDim / 8; ++n) {
        *reinterpret_cast<float2*>(output + n * 8) =
            float2{state.output[t][n][half * 2], state.output[t][n][half * 2 + 1]};
      }
      if (lane % 4 == 0) {
        call.states[states * Shape::kDim + index] = state.max[t][half];
        call.states[states * (Shape::kDim + 1) + index] = sum;
      }
    }
  }
}

template <int kDim, bool kListed>
__device__ __forceinline__ void attend_float_rows(const SplitCall& call) {
  using Tile = FloatTile<kDim>;
  const Place place = place_of<kListed>(call, Tile::kRows);
  const KeySpan<float> span = span_of<float, kListed>(call, place.sequence, place.kv_head);
  if (span.begin >= span.end || (kListed && place.first_row >= place.end_row)) return;
  const int readers = place.end_row - place.first_row;
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < Tile::kRows * kDim; i += Tile::kThreads) {
    const int row = i / kDim;
    const int column = i % kDim;
    Tile::queries()[i] = row < readers && column < call.dim
                             ? query_of<float>(call, place, row_of(place, row))[column]
                             : 0.0f;
  }
  FloatState<kDim> state;
  clear(state);
  attend_floats<kDim>(span, call.scale_log2, state, [&](int) { return span.end; });
  const int rows = place.num_rows - place.first_row;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t states = num_states(call);
#pragma unroll
  for (int r = 0; r < Tile::kWarpRows; ++r) {
    const int row = static_cast<int>(threadIdx.x) / 32 * Tile::kWarpRows + r;
    if (row >= rows) continue;
    const int64_t index = place.state + place.first_row + row;
#pragma unroll
    for (int n = 0; n < kDim / 32; ++n) {
      call.states[index * kDim + n * 32 + lane] = state.output[r][n];
    }
    if (lane == 0) {
      call.states[states * kDim + index] = state.max[r];
      call.states[states * (kDim + 1) + index] = state.sum[r];
    }
  }
}

template <int kDim>
__global__ void __launch_bounds__(128, kDim == 128 ? 3 : 0)
    split_floats(const __grid_constant__ SplitCall call) {
  attend_float_rows<kDim, false>(call);
}

// With SplitCall::rows. Apart from split_floats, which would take more registers.
template <int kDim>
__global__ void __launch_bounds__(128, kDim == 128 ? 3 : 0)
    split_floats_listed(const __grid_constant__ SplitCall call) {
  attend_float_rows<kDim, true>(call);
}

// Merges the unfinished states of one row in `chunks` chunks, `stride` apart, into an output and an
// lse.
template <int kDim>
__device__ __forceinline__ float finish_row(const SplitCall& call, int64_t first, int64_t stride,
                                            int chunks, float (&output)[kDim / 32]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t states = num_states(call);
  const float* maxima = call.states + states * kDim;
  float max = -INFINITY;
  float sum = 0.0f;
  if (lane < chunks) {
    max = maxima[first + lane * stride];
    sum = maxima[states + first + lane * stride];
  }
  const float largest = warp_max(max);
  const float shift = largest == -INFINITY ? 0.0f : largest;
  const float weight = exp2_flushed(max - shift);
  const float total = warp_sum(lane < chunks ? weight * sum : 0.0f);
#pragma unroll
  for (int n = 0; n < kDim / 32; ++n) output[n] = 0.0f;
  if (total == 0.0f) return -INFINITY;  // no key, or only -inf scores
#pragma unroll 8
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const float factor = __shfl_sync(~0u, weight, chunk);
    const float* from = call.states + (first + chunk * stride) * kDim + lane;
#pragma unroll
    for (int n = 0; n < kDim / 32; ++n) output[n] += factor * from[n * 32];
  }
#pragma unroll
  for (int n = 0; n < kDim / 32; ++n) output[n] /= total;
  return (largest + log2f(total)) * 0.6931471805599453f;
}

template <int kDim>
__device__ __forceinline__ void load_row(const float* from, int dim, float (&row)[kDim / 32]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int n = 0; n < kDim / 32; ++n) row[n] = n * 32 + lane < dim ? from[n * 32 + lane] : 0.0f;
}

// A warp per row (sequence, head, token).
template <class Scalar, int kDim>
__global__ void __launch_bounds__(128, 8) split_merge(const __grid_constant__ SplitCall call) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * 4 + threadIdx.x / 32;
  if (row >= static_cast<int64_t>(call.sequences) * call.heads * call.queries) return;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int t = static_cast<int>(row % call.queries);
  const int head = static_cast<int>(row / call.queries % call.heads);
  const int sequence = static_cast<int>(row / call.queries / call.heads);
  const int64_t stride = static_cast<int64_t>(call.group) * call.queries;
  const int64_t kv_head = static_cast<int64_t>(sequence) * call.kv_heads + head / call.group;
  const int64_t first = kv_head * (call.max_chunks + 1) * stride;

  const int length = prefix_length(call, sequence, head / call.group);
  float parts[3][kDim / 32];
  float lses[3];
  const int place = external_place(call, sequence, head, t);
  if (place < 0) {
    load_row<kDim>(call.cached_external + row * call.dim, call.dim, parts[0]);
    lses[0] = call.cached_lse[row];
  } else {
    lses[0] = finish_row<kDim>(call, first + place, stride, num_chunks(length), parts[0]);
  }
  lses[1] = finish_row<kDim>(
      call, first + call.max_chunks * stride + head % call.group * call.queries + t, stride,
      call.internal_keys > 0 ? 1 : 0, parts[1]);
  lses[2] = -INFINITY;
  if (call.residual != nullptr) {
    load_row<kDim>(call.residual + row * call.dim, call.dim, parts[2]);
    lses[2] = call.lse_residual[row];
  }
  if (call.keys_read != nullptr && lane == 0 && t == 0 && head % call.group == 0) {
    call.keys_read[kv_head] = length;
  }
  float merged[kDim / 32];
  merge_parts(parts, lses, merged);
  Scalar* out =
      static_cast<Scalar*>(call.out) +
      ((static_cast<int64_t>(sequence) * call.queries + t) * call.heads + head) * call.dim;
#pragma unroll
  for (int n = 0; n < kDim / 32; ++n) {
    const int d = n * 32 + lane;
    if (d >= call.dim) break;
    if (call.external != nullptr) {
      call.external[row * call.dim + d] = parts[0][n];
      call.internal[row * call.dim + d] = parts[1][n];
    }
    out[d] = round_to<Scalar>(merged[n]);
  }
  if (lane == 0 && call.external != nullptr) {
    call.lse_external[row] = lses[0];
    call.lse_internal[row] = lses[1];
  }
}

// --- launches

inline dim3 split_grid(const SplitCall& call, int rows_per_tile) {
  const int tiles = (call.group * call.queries + rows_per_tile - 1) / rows_per_tile;
  return dim3{static_cast<unsigned>(call.max_chunks + 1),
              static_cast<unsigned>(call.kv_heads * tiles), static_cast<unsigned>(call.sequences)};
}

constexpr int kLeastSharedLimit = 99 * 1024;  // bytes of a thread block: sm_86, 89, 120
constexpr unsigned kFewBlocks = 144;          // multiprocessors of an H100, and a few short blocks

template <class Shape>
void launch_tiles(const SplitCall& call, Stream stream) {
  launch(split_tiles<Shape>, split_grid(call, Shape::kRows), dim3{Shape::kThreads, 1, 1},
         Shape::kSharedBytes, stream, call);
}

template <class Scalar, int kDim>
void launch_with(const SplitCall& call, Stream stream) {
  if constexpr (sizeof(Scalar) == 4) {
    using Tile = FloatTile<kDim>;
    launch(call.rows == nullptr ? split_floats<kDim> : split_floats_listed<kDim>,
           split_grid(call, Tile::kRows), dim3{Tile::kThreads, 1, 1}, Tile::kSharedBytes, stream,
           call);
  } else if constexpr (kDim > 128) {
    // All variants take the same steps for a row, so the bits are the same. The GPU's shared memory
    // decides which one runs.
    using Wide = TileShape<Scalar, kDim, 8, 1, 2, 16>;
    using Narrow = TileShape<Scalar, kDim, 4, 1, 2, 16>;
    const int limit = shared_limit();
    if (call.group * call.queries > 64 && Wide::kSharedBytes <= limit) {
      launch_tiles<Wide>(call, stream);
    } else if (Narrow::kSharedBytes <= limit) {
      launch_tiles<Narrow>(call, stream);
    } else {
      launch_tiles<TileShape<Scalar, kDim, 4, 1, 2, 16, 32>>(call, stream);
    }
  } else if (call.group * call.queries <= 64) {
    using Deep = TileShape<Scalar, kDim, 4, 1, 3, 64>;
    if constexpr (Deep::kSharedBytes > kLeastSharedLimit) {
      if (Deep::kSharedBytes > shared_limit()) {
        launch_tiles<TileShape<Scalar, kDim, 4, 1, 2, 64>>(call, stream);
      } else {
        launch_tiles<Deep>(call, stream);
      }
    } else {
      launch_tiles<Deep>(call, stream);
    }
  } else {
    // Eight warps of 16 rows if every block has its own multiprocessor; else two blocks of four
    // warps each. Every row takes the same steps, so it has the same bits.
    const dim3 grid = split_grid(call, 128);
    if (grid.x * grid.y * grid.z <= kFewBlocks) {
      launch_tiles<TileShape<Scalar, kDim, 8, 1, 2, 32>>(call, stream);
    } else {
      launch_tiles<TileShape<Scalar, kDim, 4, 2, 2, 32>>(call, stream);
    }
  }
  const int64_t rows = static_cast<int64_t>(call.sequences) * call.heads * call.queries;
  launch(split_merge<Scalar, kDim>, dim3{static_cast<unsigned>((rows + 3) / 4), 1, 1},
         dim3{128, 1, 1}, 0, stream, call);
}

template <class Scalar>
void launch_of(const SplitCall& call, Stream stream) {
  switch (padded_dim(call.dim)) {
    case 64:
      return launch_with<Scalar, 64>(call, stream);
    case 128:
      return launch_with<Scalar, 128>(call, stream);
    default:
      return launch_with<Scalar, 256>(call, stream);
  }
}

void launch_split_attention(const SplitCall& call, void* on) {
  const auto stream = static_cast<Stream>(on);
  switch (call.type) {
    case DeviceFloat::kFloat32:
      return launch_of<float>(call, stream);
    case DeviceFloat::kFloat16:
      return launch_of<Half>(call, stream);
    case DeviceFloat::kBFloat16:
      return launch_of<BFloat16>(call, stream);
  }
}

}  // namespace blockscope::BLOCKSCOPE_BACKEND
