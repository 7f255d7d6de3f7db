// First half of the body of the tile kernels: packing. See tile_kernels_impl.h.
#pragma once

#include <cstring>

#include "kernels/simd/shuffle_impl.h"
#include "kernels/simd/tile_kernels.h"
#include "kernels/simd/vectors_impl.h"

namespace blockscope {
namespace {

#if defined(__AVX512F__)
constexpr unsigned kGroup = 12;  // 12 * 2 accumulators + 2 operands of 32 registers
#else
constexpr unsigned kGroup = 6;  // 6 * 2 accumulators + 3 of 16 registers
#endif
#if defined(__AVX512BF16__)
constexpr bool kBFloat16Pairs = true;
#else
constexpr bool kBFloat16Pairs = false;
#endif
constexpr int64_t kPanel = 2 * kLanes;

// 32-bit units, copied unchanged.
struct LoadPair : LoadFloat32 {};

// Calls f with the Load of the element type. `pairs`: products may be taken two at a time.
template <class F>
inline void with_load(Element element, bool pairs, F f) {
  if (element == Element::kFloat32) return f(LoadFloat32{});
  if (element == Element::kFloat16) return f(LoadFloat16{});
  if (pairs) return f(LoadPair{});
  f(LoadBFloat16{});
}

inline bool uses_pairs(Element element) { return kBFloat16Pairs && element == Element::kBFloat16; }

inline int64_t depth_of(Element element, int64_t dim) {
  return uses_pairs(element) ? (dim + 1) / 2 : dim;
}

// --- packing

// Perfect shuffles: log2(kLanes) rounds of interleaving row i with row i + kLanes / 2 transpose.
inline void transpose(Vec* rows) {
  constexpr size_t kCount = kLanes;
  const auto low = [](size_t lane) { return lane / 2 + lane % 2 * kCount; };
  const auto high = [](size_t lane) { return (lane + kCount) / 2 + lane % 2 * kCount; };
#pragma GCC unroll 4
  for (int round = 1; round < kLanes; round *= 2) {
    Vec next[kLanes];
#pragma GCC unroll 8
    for (int i = 0; i < kLanes / 2; ++i) {
      next[2 * i] = shuffle(rows[i], rows[i + kLanes / 2], low);
      next[2 * i + 1] = shuffle(rows[i], rows[i + kLanes / 2], high);
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
