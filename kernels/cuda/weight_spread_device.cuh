// The statistics of WeightSpread (ops.h), after split_attention has left the lse of every row. The
// chunks of keys are those of split_attention. A warp takes up to 16 rows (8 for float32) of one
// query head, so every sum it writes belongs to one head. A third kernel adds the sums of a head in
// a fixed order, so the bits depend neither on the schedule nor on the rest of the batch.
#pragma once

#include <cmath>

#include "kernels/cuda/device_calls.h"
#include "kernels/cuda/key_tile_device.cuh"
#include "kernels/cuda/merge_device.cuh"
#include "kernels/cuda/split_floats_device.cuh"
#include "kernels/cuda/split_span_device.cuh"
#include "kernels/cuda/typed_device.cuh"

namespace blockscope::BLOCKSCOPE_BACKEND {

constexpr float kLog2E = 1.4426950408889634f;
constexpr float kLn2 = 0.6931471805599453f;

// Rows [first, first + count) of one query head; count is 0 for a warp without rows.
struct HeadRows {
  int head;
  int part;  // number among the parts of the head
  int first;
  int count;
};

// Rows of the warp after `warps` others. blockIdx.y is KV head * blocks of its parts + block.
__device__ __forceinline__ HeadRows head_rows(const SpreadCall& call, int warp) {
  const SplitCall& attention = call.attention;
  const int parts = spread_parts(call);
  const int blocks = (attention.group * parts + kSpreadWarps - 1) / kSpreadWarps;
  const int kv_head = static_cast<int>(blockIdx.y) / blocks;
  const int number = static_cast<int>(blockIdx.y) % blocks * kSpreadWarps + warp;
  HeadRows rows;
  rows.head = kv_head * attention.group + number / parts;
  rows.part = number % parts;
  rows.first = rows.part * spread_rows(attention.type);
  rows.count = attention.queries - rows.first;
  if (rows.count > spread_rows(attention.type)) rows.count = spread_rows(attention.type);
  if (number >= attention.group * parts) rows.count = 0;
  return rows;
}

__device__ __forceinline__ int64_t head_index(const SplitCall& call, int head) {
  return static_cast<int64_t>(blockIdx.z) * call.heads + head;
}

// The lse of two disjoint sets of keys together.
__device__ __forceinline__ float lse_of_both(float a, float b) {
  if (a == -INFINITY) return b;
  if (b == -INFINITY) return a;
  const float largest = a > b ? a : b;
  return largest + logf(expf(a - largest) + expf(b - largest));
}

// One row and one side of its keys. Scores and their differences are multiples of ln 2 here.
struct RowSpread {
  float lse = INFINITY;       // of the side; infinite without keys, so that nothing has a weight
  float share = 0.0f;         // of the side among all keys
  float energy = 0.0f;        // sum of weight * (score - lse), of this lane's keys
  float largest = -INFINITY;  // largest score - lse
};

__device__ __forceinline__ RowSpread row_spread(const SplitCall& call, int64_t row, bool internal) {
  const float external_lse = call.lse_external[row];
  const float internal_lse = call.lse_internal[row];
  const float lse = internal ? internal_lse : external_lse;
  RowSpread spread;
  if (lse == -INFINITY) return spread;
  spread.lse = lse * kLog2E;
  spread.share = expf(lse - lse_of_both(external_lse, internal_lse));
  return spread;
}

// Adds one key to the row's values and returns its weight among all keys; 0 unless it `counts`.
__device__ __forceinline__ float add_key(RowSpread& row, float score, float scale_log2,
                                         bool counts) {
  if (!counts) return 0.0f;
  const float level = fmaf(score, scale_log2, -row.lse);
  const float weight = exp2_flushed(level);
  row.energy += weight == 0.0f ? 0.0f : weight * level;  // the level may be -inf
  row.largest = fmaxf(row.largest, level);               // NaN is handled by spread_merge
  return weight * row.share;
}

// Sums of a warp's weights over ranges of keys. Every range is written once, in order.
struct RangeSums {
  const int32_t* ends;  // of the ranges, among the keys that the KV head reads
  float* to;
  int ranges;
  int range = 0;
  int end = 0;       // of `range`
  float sum = 0.0f;  // this lane's share of the sum of `range`

  __device__ __forceinline__ void open(int next) {
    range = next;
    end = range < ranges ? ends[range] : 0;
    sum = 0.0f;
  }
  __device__ __forceinline__ void close() {
    const float total = warp_sum(sum);
    if (lane_of_warp() == 0) to[range] = total;
    open(range + 1);
  }
  // Adds the keys [from, last). sum_of(from, to): this lane's weights of the keys [from, to).
  template <class SumOf>
  __device__ __forceinline__ void add(int from, int last, const SumOf& sum_of) {
#pragma unroll 1
    while (range < ranges && from < last) {
      const int to_key = end < last ? end : last;
      if (to_key > from) {
        sum += sum_of(from, to_key);
        from = to_key;
      }
      if (end <= from) close();
    }
  }
  __device__ __forceinline__ void finish() {
#pragma unroll 1
    while (range < ranges) close();
  }
};

__device__ __forceinline__ RangeSums range_sums(const SpreadCall& call, const HeadRows& rows) {
  const int64_t head = head_index(call.attention, rows.head);
  RangeSums sums;
  sums.ends = call.reached + head / call.attention.group * call.ranges;
  sums.to = spread_range(call, head, rows.part, static_cast<int>(blockIdx.x));
  sums.ranges = call.ranges;
  sums.open(0);
  return sums;
}

// Sums by key, then by offset, of a warp's rows over the internal keys.
__device__ __forceinline__ void clear_inside(const SpreadCall& call, float* inside) {
  const int keys = call.attention.internal_keys;
  for (int i = lane_of_warp(); i < 2 * keys - 1; i += 32) inside[keys + i] = 0.0f;
}

// Adds `count` internal keys from `first` on. Their weights are in shared memory, [row][pitch], and
// all lanes see them.
__device__ __forceinline__ void add_inside(const SpreadCall& call, float* inside,
                                           const HeadRows& rows, const float* weights, int pitch,
                                           int first, int count) {
  const int keys = call.attention.internal_keys;
  const int lane = lane_of_warp();
  for (int key = lane; key < count; key += 32) {
    float sum = 0.0f;
    for (int r = 0; r < rows.count; ++r) sum += weights[r * pitch + key];
    inside[first + key] = sum;
  }
  for (int r = 0; r < rows.count; ++r) {
    const int place = call.places == nullptr ? rows.first + r : call.places[rows.first + r];
    float* const offsets = inside + keys + keys - 1 - place + first;
    for (int key = lane; key < count; key += 32) offsets[key] += weights[r * pitch + key];
    __syncwarp();  // the next row adds to the same offsets from other lanes
  }
}

__device__ __forceinline__ void store_row(const SpreadCall& call, const HeadRows& rows, int r,
                                          float energy, float largest) {
  const int64_t row = head_index(call.attention, rows.head) * call.attention.queries;
  float* const state = spread_row(call, row + rows.first + r, static_cast<int>(blockIdx.x));
  state[0] = energy;
  state[1] = largest;
}

// After the queries and the key tiles: the weights of internal keys, [warp][row].
template <class Shape>
constexpr int kSpreadPitch = Shape::kStep + 8;  // the rows of a fragment start in different banks
template <class Shape>
constexpr int kSpreadSharedBytes =
    kKeyTilesEnd<Shape> + Shape::kRows* kSpreadPitch<Shape>* static_cast<int>(sizeof(float));

// blockIdx is (chunk, KV head * blocks of rows + block, sequence), as for split_tiles.
template <class Shape>
__global__ void __launch_bounds__(Shape::kThreads, 2)
    spread_tiles(const __grid_constant__ SpreadCall call) {
  static_assert(Shape::kRowTiles == 1 && Shape::kWarps == kSpreadWarps);
  using Scalar = typename Shape::Scalar;
  const SplitCall& attention = call.attention;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = lane_of_warp();
  const HeadRows rows = head_rows(call, warp);
  const int sequence = static_cast<int>(blockIdx.z);
  const int kv_head = head_rows(call, 0).head / attention.group;
  const KeySpan<Scalar> span = span_of<Scalar>(attention, sequence, kv_head);
  if (span.begin >= span.end) return;
  const bool aligned = is_aligned<Scalar>(attention.q);
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < Shape::kRows * Shape::kPieces;
       i += Shape::kThreads) {
    const int row = i / Shape::kPieces;
    const int piece = i % Shape::kPieces;
    const HeadRows from = head_rows(call, row / Shape::kWarpRows);
    const int r = row % Shape::kWarpRows;
    const bool present = r < from.count;
    copy_piece(dynamic_shared() + piece_at<Shape>(row, piece),
               row_at<Scalar>(attention.q, sequence, present ? from.head : 0,
                              present ? from.first + r : 0),
               piece * 8, attention.dim, present, aligned);
  }
  const bool internal = static_cast<int>(blockIdx.x) == attention.max_chunks;
  const int64_t head = head_index(attention, rows.head);
  RowSpread spreads[2];
  RangeSums ranges{};
  float* inside = nullptr;
  if (rows.count > 0) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int r = half * 8 + lane / 4;
      if (r < rows.count) {
        spreads[half] = row_spread(attention, head * attention.queries + rows.first + r, internal);
      }
    }
    if (internal) {
      inside = spread_inside(call, head, rows.part);
      clear_inside(call, inside);
    } else {
      ranges = range_sums(call, rows);
    }
  }
  float* const tile = reinterpret_cast<float*>(dynamic_shared() + kKeyTilesEnd<Shape>) +
                      warp * Shape::kWarpRows * kSpreadPitch<Shape>;
  score_span<Shape>(span, rows.count > 0, [&](int first, auto& scores) {
    const int left = span.end - span.begin - first;
#pragma unroll
    for (int n = 0; n < Shape::kStep / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = i / 2 * 8 + lane / 4;
        const int key = n * 8 + lane % 4 * 2 + i % 2;
        float& score = scores[0][n][i];
        score =
            add_key(spreads[i / 2], score, attention.scale_log2, row < rows.count && key < left);
      }
    }
    if (!internal) {
      const int begin = span.begin + first;
      ranges.add(begin, begin + (left < Shape::kStep ? left : Shape::kStep), [&](int from, int to) {
        const int first_key = from - begin - lane % 4 * 2;
        const int end_key = to - begin - lane % 4 * 2;
        float sum = 0.0f;
#pragma unroll
        for (int n = 0; n < Shape::kStep / 8; ++n) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const int key = n * 8 + i;
            if (key >= first_key && key < end_key) sum += scores[0][n][i] + scores[0][n][i + 2];
          }
        }
        return sum;
      });
      return;
    }
#pragma unroll
    for (int n = 0; n < Shape::kStep / 8; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float* const to = tile + (half * 8 + lane / 4) * kSpreadPitch<Shape> + n * 8 + lane % 4 * 2;
        *reinterpret_cast<float2*>(to) = float2{scores[0][n][half * 2], scores[0][n][half * 2 + 1]};
      }
    }
    __syncwarp();  // all lanes see the weights, and at first the cleared sums
    add_inside(call, inside, rows, tile, kSpreadPitch<Shape>, first,
               left < Shape::kStep ? left : Shape::kStep);
  });
  if (rows.count == 0) return;
  if (!internal) ranges.finish();
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float energy = spreads[half].energy;
    energy += __shfl_xor_sync(~0u, energy, 1);
    energy += __shfl_xor_sync(~0u, energy, 2);
    float largest = spreads[half].largest;
    largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 2));
    const int r = half * 8 + lane / 4;
    if (lane % 4 == 0 && r < rows.count) store_row(call, rows, r, energy, largest);
  }
}

// Queries, one tile of keys, and the weights of internal keys, [warp][row][key].
template <int kDim>
constexpr int kSpreadFloats =
    FloatTile<kDim>::kRows* kDim + FloatTile<kDim>::kKeys* FloatTile<kDim>::kPitch;
template <int kDim>
constexpr int kSpreadFloatsSharedBytes = (kSpreadFloats<kDim> +
                                          FloatTile<kDim>::kRows * FloatTile<kDim>::kKeys) *
                                         static_cast<int>(sizeof(float));

template <int kDim>
__global__ void __launch_bounds__(128) spread_floats(const __grid_constant__ SpreadCall call) {
  using Tile = FloatTile<kDim>;
  constexpr int kRows = Tile::kWarpRows;
  const SplitCall& attention = call.attention;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = lane_of_warp();
  const HeadRows rows = head_rows(call, warp);
  const int sequence = static_cast<int>(blockIdx.z);
  const int kv_head = head_rows(call, 0).head / attention.group;
  const KeySpan<float> span = span_of<float>(attention, sequence, kv_head);
  if (span.begin >= span.end) return;
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < Tile::kRows * kDim; i += Tile::kThreads) {
    const int row = i / kDim;
    const int column = i % kDim;
    const HeadRows from = head_rows(call, row / kRows);
    const int r = row % kRows;
    Tile::queries()[i] =
        r < from.count && column < attention.dim
            ? row_at<float>(attention.q, sequence, from.head, from.first + r)[column]
            : 0.0f;
  }
  const bool internal = static_cast<int>(blockIdx.x) == attention.max_chunks;
  const int64_t head = head_index(attention, rows.head);
  RowSpread spreads[kRows];
  RangeSums ranges{};
  float* inside = nullptr;
  if (rows.count > 0) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (r < rows.count) {
        spreads[r] = row_spread(attention, head * attention.queries + rows.first + r, internal);
      }
    }
    if (internal) {
      inside = spread_inside(call, head, rows.part);
      clear_inside(call, inside);
    } else {
      ranges = range_sums(call, rows);
    }
  }
  float* const tile = Tile::queries() + kSpreadFloats<kDim> + warp * kRows * Tile::kKeys;
#pragma unroll 1
  for (int first = span.begin; first < span.end; first += Tile::kKeys) {
    copy_floats<kDim, false>(span, first);
    __syncthreads();
    if (rows.count > 0) {
      float weights[kRows];
      score_floats<kDim>(weights);
      float sum = 0.0f;
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        weights[r] = add_key(spreads[r], weights[r], attention.scale_log2,
                             r < rows.count && first + lane < span.end);
        sum += weights[r];
      }
      const int end = span.end - first < Tile::kKeys ? span.end : first + Tile::kKeys;
      if (internal) {
#pragma unroll
        for (int r = 0; r < kRows; ++r) tile[r * Tile::kKeys + lane] = weights[r];
        __syncwarp();  // all lanes see the weights, and at first the cleared sums
        add_inside(call, inside, rows, tile, Tile::kKeys, first, end - first);
      } else {
        ranges.add(first, end, [&](int from, int to) {
          return first + lane >= from && first + lane < to ? sum : 0.0f;
        });
      }
    }
    __syncthreads();  // before the tile is overwritten
  }
  if (rows.count == 0) return;
  if (!internal) ranges.finish();
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const float energy = warp_sum(spreads[r].energy);
    const float largest = warp_max(spreads[r].largest);
    if (lane == 0 && r < rows.count) store_row(call, rows, r, energy, largest);
  }
}

// The ends of the ranges among the keys that a KV head reads: a thread for each.
__global__ void __launch_bounds__(128) spread_ends(const __grid_constant__ SpreadCall call) {
  const SplitCall& attention = call.attention;
  const int64_t heads = static_cast<int64_t>(attention.sequences) * attention.kv_heads;
  const int64_t i = static_cast<int64_t>(blockIdx.x) * 128 + threadIdx.x;
  if (i >= heads * call.ranges) return;
  const int64_t head = i / call.ranges;
  const int end = call.ends[head / attention.kv_heads * call.ranges + i % call.ranges];
  int reached = end;
  if (attention.counts != nullptr && attention.counts[head] >= 0) {
    const int32_t* positions = attention.positions + head * attention.capacity;
    int above = attention.counts[head];  // the first position from `end` on is in [reached, above]
    reached = 0;
    while (reached < above) {
      const int middle = (reached + above) / 2;
      if (positions[middle] < end) {
        reached = middle + 1;
      } else {
        above = middle;
      }
    }
  }
  call.reached[i] = reached;
}

// Entropies and largest weights of one row: of the external, the internal, and all keys.
__device__ __forceinline__ void merge_sides(const SpreadCall& call, int64_t row, int chunks,
                                            float (&entropy)[3], float (&largest)[3]) {
  const SplitCall& attention = call.attention;
  const float lses[2] = {attention.lse_external[row], attention.lse_internal[row]};
  const float lse = lse_of_both(lses[0], lses[1]);
  entropy[2] = 0.0f;
  largest[2] = 0.0f;
#pragma unroll
  for (int side = 0; side < 2; ++side) {
    const int first = side == 0 ? 0 : attention.max_chunks;
    const int end = side == 0 ? chunks : first + (attention.internal_keys > 0 ? 1 : 0);
    float energy = 0.0f;
    float level = -INFINITY;
    for (int chunk = first; chunk < end; ++chunk) {
      const float* const state = spread_row(call, row, chunk);
      energy += state[0];
      level = fmaxf(level, state[1]);
    }
    entropy[side] = 0.0f - energy * kLn2;
    largest[side] = lses[side] == lses[side] ? exp2_flushed(level) : lses[side];  // NaN if it is
    const float share = lses[side] == -INFINITY ? 0.0f : expf(lses[side] - lse);
    if (share == 0.0f) continue;
    entropy[2] += share * (entropy[side] - (lses[side] - lse));
    const float weight = share * largest[side];
    largest[2] = weight <= largest[2] ? largest[2] : weight;  // NaN wins
  }
}

// Whether a row of the head takes the cached pair.
__device__ __forceinline__ bool reuses(const SplitCall& call, int sequence, int head) {
  for (int t = 0; t < call.queries; ++t) {
    if (external_place(call, sequence, head, t) < 0) return true;
  }
  return false;
}

// A thread block for each head.
__global__ void __launch_bounds__(128) spread_merge(const __grid_constant__ SpreadCall call) {
  const SplitCall& attention = call.attention;
  const int head_number = static_cast<int>(blockIdx.x);
  const int sequence = static_cast<int>(blockIdx.z);
  const int kv_head = head_number / attention.group;
  const int64_t head = head_index(attention, head_number);
  const int thread = static_cast<int>(threadIdx.x);
  const int chunks = num_chunks(prefix_length(attention, sequence, kv_head));
  const bool reused = reuses(attention, sequence, head_number);
  const auto queries = static_cast<float>(attention.queries);

  float sums[6] = {};  // entropies, then largest weights
  for (int t = thread; t < attention.queries; t += 128) {
    float entropy[3];
    float largest[3];
    merge_sides(call, head * attention.queries + t, chunks, entropy, largest);
#pragma unroll
    for (int i = 0; i < 3; ++i) {
      sums[i] += entropy[i];
      sums[3 + i] += largest[i];
    }
  }
  float* const of_warps = reinterpret_cast<float*>(dynamic_shared());  // [warp][6]
#pragma unroll
  for (int i = 0; i < 6; ++i) {
    const float sum = warp_sum(sums[i]);
    if (thread % 32 == 0) of_warps[thread / 32 * 6 + i] = sum;
  }
  __syncthreads();
  const auto mean = [&](int i) {
    return (of_warps[i] + of_warps[6 + i] + of_warps[12 + i] + of_warps[18 + i]) / queries;
  };
  if (thread < 6) {
    float* const to = (thread < 3 ? call.entropy : call.largest) + head * 3;
    to[thread % 3] = reused && thread % 3 != 1 ? NAN : mean(thread);
  }

  const int parts = spread_parts(call);
  // As on the CPU, where a range is a difference of sums: NaN reaches every later range.
  const float poison = mean(2) == mean(2) && !reused ? 0.0f : NAN;
  const int32_t* const reached = call.reached + head / attention.group * call.ranges;
  for (int r = thread; r < call.ranges; r += 128) {
    float total = reached[r] > 0 || reused ? poison : 0.0f;
    for (int part = 0; part < parts; ++part) {
      for (int chunk = 0; chunk < chunks; ++chunk) {
        total += spread_range(call, head, part, chunk)[r];
      }
    }
    call.range[head * call.ranges + r] = total / queries;
  }
  const int keys = attention.internal_keys;
  const int offsets = keys > 0 ? 2 * keys - 1 : 0;
  for (int i = thread; i < keys + offsets; i += 128) {
    float total = reused ? NAN : 0.0f;
    for (int part = 0; part < parts; ++part) total += spread_inside(call, head, part)[i];
    float* const to = i < keys ? call.key + head * keys : call.offset + head * offsets - keys;
    to[i] = total / queries;
  }
}

// --- launches

inline dim3 spread_grid(const SpreadCall& call) {
  const SplitCall& attention = call.attention;
  const int blocks = (attention.group * spread_parts(call) + kSpreadWarps - 1) / kSpreadWarps;
  return dim3{static_cast<unsigned>(attention.max_chunks + 1),
              static_cast<unsigned>(attention.kv_heads * blocks),
              static_cast<unsigned>(attention.sequences)};
}

template <class Scalar, int kDim>
void launch_spread_with(const SpreadCall& call, Stream stream) {
  if constexpr (sizeof(Scalar) == 4) {
    launch(spread_floats<kDim>, spread_grid(call), dim3{FloatTile<kDim>::kThreads, 1, 1},
           kSpreadFloatsSharedBytes<kDim>, stream, call);
  } else {
    constexpr bool kWide = kDim > 128;
    using Shape = TileShape<Scalar, kDim, kSpreadWarps, 1, 2, kWide ? 32 : 64, kWide ? 32 : 64>;
    launch(spread_tiles<Shape>, spread_grid(call), dim3{Shape::kThreads, 1, 1},
           kSpreadSharedBytes<Shape>, stream, call);
  }
}

void launch_spread(const SpreadCall& call, void* on) {
  const auto stream = static_cast<Stream>(on);
  const SplitCall& attention = call.attention;
  const int64_t ends = static_cast<int64_t>(attention.sequences) * attention.kv_heads * call.ranges;
  if (ends > 0) {
    launch(spread_ends, dim3{static_cast<unsigned>((ends + 127) / 128), 1, 1}, dim3{128, 1, 1}, 0,
           stream, call);
  }
  with_type(attention.type, [&](auto scalar) {
    using Scalar = decltype(scalar);
    switch (padded_dim(attention.dim)) {
      case 64:
        return launch_spread_with<Scalar, 64>(call, stream);
      case 128:
        return launch_spread_with<Scalar, 128>(call, stream);
      default:
        return launch_spread_with<Scalar, 256>(call, stream);
    }
  });
  launch(
      spread_merge,
      dim3{static_cast<unsigned>(attention.heads), 1, static_cast<unsigned>(attention.sequences)},
      dim3{128, 1, 1}, 4 * 6 * sizeof(float), stream, call);
}

}  // namespace blockscope::BLOCKSCOPE_BACKEND
