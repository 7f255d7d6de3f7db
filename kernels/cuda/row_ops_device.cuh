// The operators of row_ops.h on rows between the products: norms, rotation, and the gate of SwiGLU,
// one kernel each. Rows are processed in chunks of 16 bytes, or element by element if they are not
// aligned. Each chunk belongs to the same thread in both cases, so sums have the same bits.
#pragma once

#include <cmath>
#include <type_traits>

#include "kernels/cuda/device_calls.h"
#include "kernels/cuda/merge_device.cuh"
#include "kernels/cuda/typed_device.cuh"

namespace blockscope::BLOCKSCOPE_BACKEND {

template <class Scalar>
constexpr int kChunk = 16 / static_cast<int>(sizeof(Scalar));  // elements

// A warp handles a row of up to this many elements, a thread block a longer row. The choice depends
// only on the row's length, and so does the order of its sum.
constexpr int kWarpRowElements = 1024;
constexpr int kBlockRowThreads = 256;

// Neighbouring elements of a row: a register holds two 16-bit elements.
template <class Scalar, int kCount = kChunk<Scalar>>
struct Chunk {
  static constexpr int kWords = kCount * static_cast<int>(sizeof(Scalar)) / 4;
  float words[kWords];

  __device__ __forceinline__ float operator[](int i) const {
    if constexpr (sizeof(Scalar) == 4) {
      return words[i];
    } else {
      const uint32_t pair = __float_as_uint(words[i / 2]);
      return i % 2 == 0 ? unpack_low(pair, Scalar{}) : unpack_high(pair, Scalar{});
    }
  }
};

// value(i) for every element, rounded.
template <class Scalar, int kCount = kChunk<Scalar>, class Value>
__device__ __forceinline__ Chunk<Scalar, kCount> make_chunk(const Value& value) {
  Chunk<Scalar, kCount> chunk;
#pragma unroll
  for (int i = 0; i < chunk.kWords; ++i) {
    if constexpr (sizeof(Scalar) == 4) {
      chunk.words[i] = value(i);
    } else {
      chunk.words[i] = __uint_as_float(pack_pair(value(i * 2), value(i * 2 + 1), Scalar{}));
    }
  }
  return chunk;
}

// The row has `left` more elements; the others are 0.
template <class Scalar, int kCount = kChunk<Scalar>>
__device__ __forceinline__ Chunk<Scalar, kCount> load_chunk(const Scalar* from, int left,
                                                            bool aligned) {
  if (!aligned) {
    return make_chunk<Scalar, kCount>([&](int i) { return i < left ? to_float(from[i]) : 0.0f; });
  }
  Chunk<Scalar, kCount> chunk;
#pragma unroll
  for (int piece = 0; piece < chunk.kWords / 4; ++piece) {
    const float4 raw = reinterpret_cast<const float4*>(from)[piece];
    chunk.words[piece * 4] = raw.x;
    chunk.words[piece * 4 + 1] = raw.y;
    chunk.words[piece * 4 + 2] = raw.z;
    chunk.words[piece * 4 + 3] = raw.w;
  }
  return chunk;
}

template <class Scalar>
__device__ __forceinline__ void store_chunk(Scalar* to, int left, bool aligned,
                                            const Chunk<Scalar>& chunk) {
  if (aligned) {
    const float(&words)[4] = chunk.words;
    *reinterpret_cast<float4*>(to) = float4{words[0], words[1], words[2], words[3]};
    return;
  }
#pragma unroll
  for (int i = 0; i < kChunk<Scalar>; ++i) {
    if (i < left) to[i] = round_to<Scalar>(chunk[i]);
  }
}

template <class Scalar>
__device__ __forceinline__ float rounded(float x) {
  return to_float(round_to<Scalar>(x));
}

// --- rows that kThreads threads share: a warp, or the thread block

template <int kThreads>
__device__ __forceinline__ int64_t row_of() {
  if constexpr (kThreads == 32) {
    return row_of_warp();
  } else {
    return blockIdx.x;
  }
}

template <int kThreads>
inline dim3 grid_of(int64_t rows) {
  return kThreads == 32 ? row_grid(rows) : dim3{static_cast<unsigned>(rows), 1, 1};
}

// Calls work(column) for the chunks of this thread, two at a time if registers allow it.
template <class Scalar, int kThreads, int kAtOnce = 2, class Work>
__device__ __forceinline__ void for_chunks(int dim, const Work& work) {
  const int thread = static_cast<int>(threadIdx.x) % kThreads;
#pragma unroll(kAtOnce)
  for (int column = thread * kChunk<Scalar>; column < dim; column += kThreads * kChunk<Scalar>) {
    work(column);
  }
}

// The sum over a row's threads, returned to all of them. Call it once per kernel.
template <int kThreads>
__device__ __forceinline__ float sum_of_row(float value) {
  value = warp_sum(value);
  if constexpr (kThreads > 32) {
    float* const sums = reinterpret_cast<float*>(dynamic_shared());
    if (lane_of_warp() == 0) sums[threadIdx.x / 32] = value;
    __syncthreads();
    value = 0.0f;
#pragma unroll
    for (int warp = 0; warp < kThreads / 32; ++warp) value += sums[warp];
  }
  return value;
}

template <class Scalar>
__device__ __forceinline__ float normed(float x, float factor, float weight, bool weight_first) {
  const float unit = x * factor;
  return (weight_first ? unit : rounded<Scalar>(unit)) * weight;
}

// 1 / sqrt(mean(x^2) + eps).
template <class Scalar, int kThreads>
__device__ __forceinline__ float norm_factor(const Scalar* x, int dim, float eps, bool aligned) {
  float squares = 0.0f;
  for_chunks<Scalar, kThreads>(dim, [&](int column) {
    const Chunk<Scalar> values = load_chunk(x + column, dim - column, aligned);
#pragma unroll
    for (int i = 0; i < kChunk<Scalar>; ++i) squares += values[i] * values[i];
  });
  return 1.0f / sqrtf(sum_of_row<kThreads>(squares) / static_cast<float>(dim) + eps);
}

// Row `row` of a tensor [S, heads, tokens, ...].
template <class Scalar>
__device__ __forceinline__ const Scalar* numbered_row(const DeviceRows& rows, int heads, int tokens,
                                                      int64_t row) {
  const int64_t head = row / tokens;
  return row_at<Scalar>(rows, head / heads, head % heads, row % tokens);
}

// --- kernels

template <class Scalar, int kThreads>
__global__ void __launch_bounds__(256) norm_rows(const __grid_constant__ NormCall call) {
  const int64_t row = row_of<kThreads>();
  if (row >= call.rows) return;
  const int dim = call.dim;
  const Scalar* x = numbered_row<Scalar>(call.x, call.heads, call.tokens, row);
  if (call.sum != nullptr) {
    const Scalar* y = numbered_row<Scalar>(call.y, call.heads, call.tokens, row);
    Scalar* const sum = static_cast<Scalar*>(call.sum) + row * dim;
    for_chunks<Scalar, kThreads>(dim, [&](int column) {
      const Chunk<Scalar> left = load_chunk(x + column, dim - column, call.aligned);
      const Chunk<Scalar> right = load_chunk(y + column, dim - column, call.aligned);
      store_chunk(sum + column, dim - column, call.aligned,
                  make_chunk<Scalar>([&](int i) { return left[i] + right[i]; }));
    });
    x = sum;  // each thread reads what it has written
  }
  const float factor = norm_factor<Scalar, kThreads>(x, dim, call.eps, call.aligned);
  const Scalar* const weight = static_cast<const Scalar*>(call.weight);
  Scalar* const out = static_cast<Scalar*>(call.out) + row * dim;
  for_chunks<Scalar, kThreads>(dim, [&](int column) {
    const Chunk<Scalar> values = load_chunk(x + column, dim - column, call.aligned);
    const Chunk<Scalar> weights = load_chunk(weight + column, dim - column, call.aligned);
    store_chunk(out + column, dim - column, call.aligned, make_chunk<Scalar>([&](int i) {
                  return normed<Scalar>(values[i], factor, weights[i], call.weight_first);
                }));
  });
}

template <class Scalar, class Table, int kThreads>
__global__ void __launch_bounds__(256) turn_rows(const __grid_constant__ RotateCall call) {
  int64_t row = row_of<kThreads>();
  if (row >= call.rows) return;
  const bool second = row >= call.parts[0].rows;
  if (second) row -= call.parts[0].rows;
  const RotateCall::Part& part = call.parts[second];
  const bool aligned = call.aligned;
  const int64_t token = row % call.tokens;
  const int64_t sequence = row / call.tokens / part.heads;
  const Scalar* const x = numbered_row<Scalar>(part.x, part.heads, call.tokens, row);
  const Scalar* const weight = static_cast<const Scalar*>(part.weight);
  const Table* const cos = row_at<Table>(call.cos, sequence, 0, token);
  const Table* const sin = row_at<Table>(call.sin, sequence, 0, token);
  Scalar* const out = static_cast<Scalar*>(part.out) + row * call.dim;
  float factor = 1.0f;
  if (weight != nullptr) factor = norm_factor<Scalar, kThreads>(x, call.dim, part.eps, aligned);
  // Channels from `column` on, after their norm and rounded like the fallback; `left` of them
  // exist.
  const auto load = [&](int column, int left) {
    const Chunk<Scalar> values = load_chunk(x + column, left, aligned);
    if (weight == nullptr) return values;
    const Chunk<Scalar> weights = load_chunk(weight + column, left, aligned);
    return make_chunk<Scalar>(
        [&](int i) { return normed<Scalar>(values[i], factor, weights[i], part.weight_first); });
  };
  const auto load_table = [&](const Table* from, int left) {
    return load_chunk<Table, kChunk<Scalar>>(from, left, aligned);
  };
  // With a table of the element's type, the result of every operator is rounded.
  const auto add = [](float a, float b) {
    if constexpr (sizeof(Table) == sizeof(Scalar)) {
      return rounded<Scalar>(a) + rounded<Scalar>(b);
    } else {
      return a + b;
    }
  };
  const int half = call.turning / 2;
  for_chunks<Scalar, kThreads, 1>(half, [&](int column) {
    const int left = half - column;
    const Chunk<Scalar> low = load(column, left);
    const Chunk<Scalar> high = load(column + half, left);
    {
      const auto cosines = load_table(cos + column, left);
      const auto sines = load_table(sin + column, left);
      store_chunk(out + column, left, aligned, make_chunk<Scalar>([&](int i) {
                    return add(low[i] * cosines[i], -high[i] * sines[i]);
                  }));
    }
    const auto cosines = load_table(cos + column + half, left);
    const auto sines = load_table(sin + column + half, left);
    store_chunk(out + column + half, left, aligned, make_chunk<Scalar>([&](int i) {
                  return add(high[i] * cosines[i], low[i] * sines[i]);
                }));
  });
  const int rest = call.dim - call.turning;
  for_chunks<Scalar, kThreads, 1>(rest, [&](int column) {
    const int at = call.turning + column;
    store_chunk(out + at, rest - column, aligned, load(at, rest - column));
  });
}

// A thread per chunk; a thread block has kGateThreads chunks of a row.
constexpr int kGateThreads = 128;

template <class Scalar>
BLOCKSCOPE_HOST_DEVICE inline int gate_blocks(int dim) {
  constexpr int kElements = kGateThreads * kChunk<Scalar>;
  return (dim + kElements - 1) / kElements;
}

template <class Scalar>
__global__ void __launch_bounds__(kGateThreads) gate_rows(const __grid_constant__ GateCall call) {
  const int blocks = gate_blocks<Scalar>(call.dim);
  const int64_t row = blockIdx.x / blocks;
  const int column =
      static_cast<int>(blockIdx.x % blocks * kGateThreads + threadIdx.x) * kChunk<Scalar>;
  const int left = call.dim - column;
  if (left <= 0) return;
  const Scalar* const gate = numbered_row<Scalar>(call.gate, call.heads, call.tokens, row);
  const Scalar* const up = numbered_row<Scalar>(call.up, call.heads, call.tokens, row);
  const Chunk<Scalar> gates = load_chunk(gate + column, left, call.aligned);
  const Chunk<Scalar> ups = load_chunk(up + column, left, call.aligned);
  store_chunk(static_cast<Scalar*>(call.out) + row * call.dim + column, left, call.aligned,
              make_chunk<Scalar>([&](int i) {
                return rounded<Scalar>(gates[i] / (expf(-gates[i]) + 1.0f)) * ups[i];
              }));
}

// --- launches

// Calls work(std::integral_constant) with the number of threads for a row of this length.
template <class Work>
void with_row_threads(int dim, const Work& work) {
  if (dim <= kWarpRowElements) return work(std::integral_constant<int, 32>{});
  work(std::integral_constant<int, kBlockRowThreads>{});
}

template <int kThreads, class Call>
void launch_rows(void (*kernel)(Call), const Call& call, void* on) {
  constexpr unsigned kBlock = kThreads == 32 ? 32 * kRowWarps : kThreads;
  launch(kernel, grid_of<kThreads>(call.rows), dim3{kBlock, 1, 1},
         kThreads == 32 ? 0 : kThreads / 32 * sizeof(float), static_cast<Stream>(on), call);
}

void launch_norm(const NormCall& call, void* on) {
  with_type(call.type, [&](auto scalar) {
    with_row_threads(call.dim, [&](auto threads) {
      constexpr int kThreads = decltype(threads)::value;
      launch_rows<kThreads, NormCall>(norm_rows<decltype(scalar), kThreads>, call, on);
    });
  });
}

void launch_rotate(const RotateCall& call, void* on) {
  with_type(call.type, [&](auto scalar) {
    using Scalar = decltype(scalar);
    with_row_threads(call.dim, [&](auto threads) {
      constexpr int kThreads = decltype(threads)::value;
      if (call.float_table) {
        launch_rows<kThreads, RotateCall>(turn_rows<Scalar, float, kThreads>, call, on);
      } else {
        launch_rows<kThreads, RotateCall>(turn_rows<Scalar, Scalar, kThreads>, call, on);
      }
    });
  });
}

void launch_gate(const GateCall& call, void* on) {
  with_type(call.type, [&](auto scalar) {
    using Scalar = decltype(scalar);
    const int64_t blocks = call.rows * gate_blocks<Scalar>(call.dim);
    launch(gate_rows<Scalar>, dim3{static_cast<unsigned>(blocks), 1, 1}, dim3{kGateThreads, 1, 1},
           0, static_cast<Stream>(on), call);
  });
}

}  // namespace blockscope::BLOCKSCOPE_BACKEND
