// The one body of the linear kernels, compiled once per instruction set
// (cmake/instruction_sets.cmake). Everything is in an unnamed namespace.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "kernels/simd/linear_kernels.h"
#include "kernels/simd/stores_impl.h"

namespace blockscope {
namespace {

static_assert(2 * kLanes == kPanelColumns);

// 12 rows x 2 vectors of sums, the two vectors of a step and a broadcast: 27 of 32 registers.
constexpr int64_t kTileRows = 12;

inline Vec add_products(Float32, Vec sum, __m512i weight, __m512i x) {
  return _mm512_fmadd_ps(_mm512_castsi512_ps(weight), _mm512_castsi512_ps(x), sum);
}

#if defined(__AVX512BF16__)
inline Vec add_products(BFloat16, Vec sum, __m512i weight, __m512i x) {
  return add_pair_products(sum, weight, x);
}
#endif

// With a few tiles of rows, a weight is read in chunks of so many steps, 16 KiB. The second tile
// finds a chunk in the first-level cache. While the last tile works on a chunk, the next chunk is
// prefetched; else memory would idle. With more than kTilesAtOnce tiles, products are the limit.
// With up to kMostStreamedRows rows, the processor's own prefetchers suffice. Both then read a
// panel as a whole. See docs/benchmarks.md, "Products of few rows".
constexpr int64_t kChunkSteps = 128;
constexpr int64_t kTilesAtOnce = 4;
constexpr int64_t kMostStreamedRows = 2;

// sums[r][c] += row r of `x` times column c of the panel, over `steps` steps.
template <class Type, size_t kRows, bool kFetchNext>
void tile(const char* x, int64_t x_stride, const char* panel, int64_t steps, float* sums) {
  Vec left[kRows];  // sums of the first half of the columns
  Vec right[kRows];
  // The loops over rows must be unrolled for the sums to stay in registers.
#pragma GCC unroll 16
  for (size_t r = 0; r < kRows; ++r) {
    left[r] = load(sums + r * kPanelColumns);
    right[r] = load(sums + r * kPanelColumns + kLanes);
  }
  for (int64_t step = 0; step < steps; ++step) {
    const char* both_halves = panel + step * kPanelStepBytes;
    const __m512i first = _mm512_loadu_si512(both_halves);
    const __m512i second = _mm512_loadu_si512(both_halves + 64);
    if constexpr (kFetchNext) {  // after the weight's end, it fetches nothing
      _mm_prefetch(both_halves + kChunkSteps * kPanelStepBytes, _MM_HINT_T0);
      _mm_prefetch(both_halves + kChunkSteps * kPanelStepBytes + 64, _MM_HINT_T0);
    }
#pragma GCC unroll 16
    for (size_t r = 0; r < kRows; ++r) {
      int32_t units;
      std::memcpy(&units, x + static_cast<int64_t>(r) * x_stride + step * 4, 4);
      const __m512i both = _mm512_set1_epi32(units);
      left[r] = add_products(Type{}, left[r], first, both);
      right[r] = add_products(Type{}, right[r], second, both);
    }
  }
#pragma GCC unroll 16
  for (size_t r = 0; r < kRows; ++r) {
    store(sums + r * kPanelColumns, left[r]);
    store(sums + r * kPanelColumns + kLanes, right[r]);
  }
}

using Tile = void (*)(const char*, int64_t, const char*, int64_t, float*);

template <class Type, bool kFetchNext>
constexpr std::array<Tile, kTileRows + 1> tiles() {
  return []<size_t... kRows>(std::index_sequence<kRows...>) {
    return std::array<Tile, kTileRows + 1>{nullptr, tile<Type, kRows + 1, kFetchNext>...};
  }
  (std::make_index_sequence<kTileRows>());
}

// The sums of vectors. for_rows calls finish(sums of a row, destination) for every row.
template <class Type>
struct VectorSums {
  template <class Finish>
  static void for_rows(const PanelProduct& p, const Finish& finish) {
    static constexpr auto kTiles = tiles<Type, false>();
    static constexpr auto kFetchingTiles = tiles<Type, true>();
    const int64_t count = (p.rows + kTileRows - 1) / kTileRows;
    const auto row_of = [&](int64_t t) { return p.rows * t / count; };  // tiles of similar size
    alignas(64) float sums[kTilesAtOnce * kTileRows * kPanelColumns];
    // Multiplies tiles [first, end) with the panel, in chunks.
    const auto some = [&](int64_t first, int64_t end, int64_t chunk, const auto& last_tiles) {
      const int64_t row = row_of(first);
      std::fill_n(sums, (row_of(end) - row) * kPanelColumns, 0.0F);
      for (int64_t step = 0; step < p.steps; step += chunk) {
        for (int64_t t = first; t < end; ++t) {
          const auto& variants = t + 1 < end ? kTiles : last_tiles;
          variants[static_cast<size_t>(row_of(t + 1) - row_of(t))](
              p.x + row_of(t) * p.x_stride + step * 4, p.x_stride, p.panel + step * kPanelStepBytes,
              std::min(chunk, p.steps - step), sums + (row_of(t) - row) * kPanelColumns);
        }
      }
      for (int64_t r = row; r < row_of(end); ++r) {
        finish(sums + (r - row) * kPanelColumns, p.out + r * p.out_stride);
      }
    };
    if (p.rows > kMostStreamedRows && count <= kTilesAtOnce) {
      some(0, count, kChunkSteps, kFetchingTiles);
    } else {
      for (int64_t t = 0; t < count; ++t) some(t, t + 1, p.steps, kTiles);
    }
  }
};

template <class Type, class Sums>
void product(const PanelProduct& p) {
  Sums::for_rows(p, [&](const float* sums, char* out) {
    for (int64_t c = 0; c < p.columns; c += kLanes) {
      const int64_t bytes = (p.columns - c) * Type::kUnitBytes;
      Vec sum = load(sums + c);
      if (p.bias != nullptr) sum += load_some<Type>(p.bias + c * Type::kUnitBytes, bytes);
      store_some<Type>(out + c * Type::kUnitBytes, sum, bytes);
    }
  });
}

template <class Type, class Sums, Vec (*kTimes)(Vec, Vec)>
void gated(const PanelProduct& p) {
  Sums::for_rows(p, [&](const float* sums, char* out) {
    const Vec gate = rounded<Type>(load(sums));
    const Vec up = rounded<Type>(load(sums + kLanes));
    store_some<Type>(out, kTimes(gate, up), p.columns * Type::kUnitBytes);
  });
}

// The element type of the vector products of the instruction set.
#if defined(__AVX512BF16__)
using Multiplied = BFloat16;
#else
using Multiplied = Float32;
#endif

template <class Type = Multiplied, class Sums = VectorSums<Type>>
constexpr LinearKernels make_linear_kernels(const char* name) {
  return {name, product<Type, Sums>, gated<Type, Sums, silu_times<Type>>,
          gated<Type, Sums, gelu_times<Type>>};
}

}  // namespace
}  // namespace blockscope
