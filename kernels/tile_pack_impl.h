// First half of the tile kernels' one body: vectors, loads, packing. See tile_kernels_impl.h.
#pragma once

#include <cstring>

#include "kernels/tile_kernels.h"

#if defined(__F16C__) || defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace blockscope {
namespace {

#if defined(__AVX512F__)
constexpr int64_t kLanes = 16;
constexpr unsigned kGroup = 12;  // 12 * 2 accumulators + 2 operands of 32 registers
#elif defined(__AVX2__)
constexpr int64_t kLanes = 8;
constexpr unsigned kGroup = 6;  // 6 * 2 accumulators + 3 of 16 registers
#else
constexpr int64_t kLanes = 4;
constexpr unsigned kGroup = 6;
#endif
#if defined(__AVX512BF16__)
constexpr bool kBFloat16Pairs = true;
#else
constexpr bool kBFloat16Pairs = false;
#endif
constexpr int64_t kPanel = 2 * kLanes;

using Vec = float __attribute__((vector_size(kLanes * 4)));
using VecI = int32_t __attribute__((vector_size(kLanes * 4)));
using VecU = uint32_t __attribute__((vector_size(kLanes * 4)));
using VecU16 = uint16_t __attribute__((vector_size(kLanes * 2)));

constexpr float kInfinity = __builtin_inff();

inline Vec broadcast(float x) { return x - Vec{}; }

inline Vec load(const float* p) {
  Vec v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

inline void store(float* p, Vec v) { std::memcpy(p, &v, sizeof v); }

template <class To, class From>
inline To bits(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

// --- loads: one vector of depth units, as float32 (LoadPair: 32-bit units, moved as they are)

struct LoadFloat32 {
  static constexpr int64_t kUnitBytes = 4;
  static Vec load_vec(const char* p) {
    Vec v;
    std::memcpy(&v, p, sizeof v);
    return v;
  }
};

struct LoadPair : LoadFloat32 {};

struct LoadBFloat16 {
  static constexpr int64_t kUnitBytes = 2;
  static Vec load_vec(const char* p) {
    VecU16 raw;
    std::memcpy(&raw, p, sizeof raw);
    return bits<Vec>(__builtin_convertvector(raw, VecU) << 16);
  }
};

struct LoadFloat16 {
  static constexpr int64_t kUnitBytes = 2;
  static Vec load_vec(const char* p) {
    VecU16 raw;
    std::memcpy(&raw, p, sizeof raw);
#if defined(__AVX512F__)
    return _mm512_maskz_cvtph_ps(0xffff, bits<__m256i>(raw));
#elif defined(__F16C__)
    return _mm256_cvtph_ps(bits<__m128i>(raw));
#else
    const VecU half = __builtin_convertvector(raw, VecU);
    const VecU sign = (half & 0x8000u) << 16;
    const VecU magnitude = half & 0x7fffu;
    // Normal numbers: rebias the exponent; Inf and NaN keep an all-ones exponent.
    const VecU rebias = magnitude >= 0x7c00u ? VecU{} + 0x70000000u : VecU{} + 0x38000000u;
    const VecU normal = (magnitude << 13) + rebias;
    // Subnormal numbers: an integer multiple of 2^-24.
    const Vec subnormal =
        __builtin_convertvector(bits<VecI>(magnitude), Vec) * 5.9604644775390625e-8f;
    return bits<Vec>((magnitude < 0x400u ? bits<VecU>(subnormal) : normal) | sign);
#endif
  }
};

// The vector at p, of which only `bytes` bytes may be read; zeros behind them.
template <class Load>
inline Vec load_some(const char* p, int64_t bytes) {
  if (bytes >= kLanes * Load::kUnitBytes) return Load::load_vec(p);
  char copy[kLanes * 4] = {};
  std::memcpy(copy, p, static_cast<size_t>(bytes));
  return Load::load_vec(copy);
}

// Calls f with the Load of the element type; `pairs` where products may be taken two at a time.
template <class F>
inline void with_load(Element element, bool pairs, F f) {
  if (element == Element::kFloat32) return f(LoadFloat32{});
  if (element == Element::kFloat16) return f(LoadFloat16{});
  if (pairs) return f(LoadPair{});
  f(LoadBFloat16{});
}

constexpr int64_t element_bytes(Element element) { return element == Element::kFloat32 ? 4 : 2; }

inline bool uses_pairs(Element element) { return kBFloat16Pairs && element == Element::kBFloat16; }

inline int64_t depth_of(Element element, int64_t dim) {
  return uses_pairs(element) ? (dim + 1) / 2 : dim;
}

// --- packing

// Perfect shuffles: log2(kLanes) rounds of interleaving row i with row i + kLanes / 2 transpose.
inline void transpose(Vec* rows) {
  VecI low{};
  VecI high{};
  for (int i = 0; i < kLanes; ++i) {
    low[i] = i / 2 + (i % 2) * static_cast<int>(kLanes);
    high[i] = low[i] + static_cast<int>(kLanes) / 2;
  }
#pragma GCC unroll 4
  for (int round = 1; round < kLanes; round *= 2) {
    Vec next[kLanes];
#pragma GCC unroll 8
    for (int i = 0; i < kLanes / 2; ++i) {
      next[2 * i] = __builtin_shuffle(rows[i], rows[i + kLanes / 2], low);
      next[2 * i + 1] = __builtin_shuffle(rows[i], rows[i + kLanes / 2], high);
    }
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) rows[i] = next[i];
  }
}

template <class Load>
void pack_keys_as(const char* keys, int64_t stride, int64_t num_keys, int64_t row_bytes,
                  int64_t depth, float* packed) {
  for (int64_t key = 0; key < num_keys; key += kLanes) {
    float* panel = packed + key / kPanel * kPanel * depth + key % kPanel;
    for (int64_t d = 0; d < depth; d += kLanes) {
      const char* corner = keys + key * stride + d * Load::kUnitBytes;
      const int64_t bytes = row_bytes - d * Load::kUnitBytes;
      Vec rows[kLanes];
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) {
        rows[i] = key + i < num_keys ? load_some<Load>(corner + i * stride, bytes) : Vec{};
      }
      transpose(rows);
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) {
        if (d + i < depth) store(panel + (d + i) * kPanel, rows[i]);
      }
    }
  }
}

void pack_keys(Element element, const void* keys, int64_t stride, int64_t num_keys, int64_t dim,
               float* packed) {
  with_load(element, uses_pairs(element), [&]<class Load>(Load) {
    pack_keys_as<Load>(static_cast<const char*>(keys), stride, num_keys,
                       dim * element_bytes(element), depth_of(element, dim), packed);
  });
}

void pack_values(Element element, const void* values, int64_t stride, int64_t num_keys, int64_t dim,
                 float* packed) {
  with_load(element, false, [&]<class Load>(Load) {
    for (int64_t d = 0; d < dim; d += kLanes) {
      float* panel = packed + d / kPanel * kPanel * kTileKeys + d % kPanel;
      const char* column = static_cast<const char*>(values) + d * Load::kUnitBytes;
      const int64_t bytes = (dim - d) * Load::kUnitBytes;
      for (int64_t key = 0; key < num_keys; ++key) {
        store(panel + key * kPanel, load_some<Load>(column + key * stride, bytes));
      }
    }
  });
}

void pack_query(Element element, const void* query, int64_t dim, int64_t row, float* packed) {
  const int64_t depth = depth_of(element, dim);
  float* column = packed + row / kGroup * kGroup * depth + row % kGroup;
  with_load(element, uses_pairs(element), [&]<class Load>(Load) {
    for (int64_t d = 0; d < depth; d += kLanes) {
      const int64_t bytes = dim * element_bytes(element) - d * Load::kUnitBytes;
      const Vec units =
          load_some<Load>(static_cast<const char*>(query) + d * Load::kUnitBytes, bytes);
      float copy[kLanes];
      store(copy, units);
      for (int64_t i = 0; i < kLanes && d + i < depth; ++i) column[(d + i) * kGroup] = copy[i];
    }
  });
}

}  // namespace
}  // namespace blockscope
