// The one body of the linear kernels, included by the linear_kernels_<isa>.cpp. Everything is in an
// unnamed namespace.
#pragma once

#include <immintrin.h>

#include <cstring>

#include "kernels/linear_kernels.h"
#include "kernels/stores_impl.h"

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
  return _mm512_dpbf16_ps(sum, bits<__m512bh>(weight), bits<__m512bh>(x));
}
#endif

// sums[r][c] = row r of `x` times column c of the panel.
template <class Type, size_t kRows>
void tile(const char* x, int64_t x_stride, const char* panel, int64_t steps, float* sums) {
  Vec left[kRows];  // sums of the first half of the columns
  Vec right[kRows];
  // The loops over rows must be unrolled for the sums to stay in registers.
#pragma GCC unroll 16
  for (size_t r = 0; r < kRows; ++r) left[r] = right[r] = Vec{};
  for (int64_t step = 0; step < steps; ++step) {
    const __m512i first = _mm512_loadu_si512(panel + step * kPanelStepBytes);
    const __m512i second = _mm512_loadu_si512(panel + step * kPanelStepBytes + 64);
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

template <class Type>
constexpr auto tiles() {
  struct Table {
    void (*of[kTileRows + 1])(const char*, int64_t, const char*, int64_t, float*);
  };
  return Table{{nullptr, tile<Type, 1>, tile<Type, 2>, tile<Type, 3>, tile<Type, 4>, tile<Type, 5>,
                tile<Type, 6>, tile<Type, 7>, tile<Type, 8>, tile<Type, 9>, tile<Type, 10>,
                tile<Type, 11>, tile<Type, 12>}};
}

// The sums of vectors. for_rows calls finish(sums of a row, where the row goes) for every row.
template <class Type>
struct VectorSums {
  template <class Finish>
  static void for_rows(const PanelProduct& p, const Finish& finish) {
    static constexpr auto kTiles = tiles<Type>();
    const int64_t count = (p.rows + kTileRows - 1) / kTileRows;
    alignas(64) float sums[kTileRows * kPanelColumns];
    for (int64_t t = 0; t < count; ++t) {
      const int64_t begin = p.rows * t / count;  // tiles of nearly one size
      const int64_t rows = p.rows * (t + 1) / count - begin;
      kTiles.of[rows](p.x + begin * p.x_stride, p.x_stride, p.panel, p.steps, sums);
      for (int64_t r = 0; r < rows; ++r) {
        finish(sums + r * kPanelColumns, p.out + (begin + r) * p.out_stride);
      }
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

template <class Type, class Sums>
void swiglu(const PanelProduct& p) {
  Sums::for_rows(p, [&](const float* sums, char* out) {
    const Vec gate = rounded<Type>(load(sums));
    const Vec up = rounded<Type>(load(sums + kLanes));
    store_some<Type>(out, silu_times<Type>(gate, up), p.columns * Type::kUnitBytes);
  });
}

template <class Type, class Sums = VectorSums<Type>>
constexpr LinearKernels make_linear_kernels(const char* name) {
  return {name, product<Type, Sums>, swiglu<Type, Sums>};
}

}  // namespace
}  // namespace blockscope
