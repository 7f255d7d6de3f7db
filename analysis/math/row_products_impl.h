// The kernels of row_products.h for the width that the including file is compiled for. Included
// once per instruction set; everything has internal linkage.
#pragma once

#include "analysis/math/row_sums_impl.h"

namespace blockscope {
namespace {

// All pairs: a panel of b is widened and transposed once. One load of it then serves several rows
// of a, with their channels broadcast, and no sum over lanes is needed. Panels stay in the L1
// cache.

constexpr size_t kPanelRows = 2 * kLanes;  // of b
constexpr size_t kPanelDepth = 128;        // channels
#if defined(__AVX512F__)
constexpr size_t kTileRows = 8;  // of a: 16 sums, 2 loads and a broadcast fit the registers
#elif defined(__AVX2__)
constexpr size_t kTileRows = 6;
#else
constexpr size_t kTileRows = 4;
#endif

/// Exchanges rows and columns of kLanes x kLanes words, in log2(kLanes) rounds of exchanging
/// halves.
template <size_t Half = 1>
inline void transpose(Words* block) {
  for (size_t i = 0; i < kLanes; ++i) {
    if ((i & Half) != 0) continue;
    const Words x = block[i];
    const Words y = block[i + Half];
    block[i] =
        shuffle(x, y, [](size_t lane) { return (lane & Half) != 0 ? lane - Half + kLanes : lane; });
    block[i + Half] =
        shuffle(x, y, [](size_t lane) { return (lane & Half) != 0 ? lane + kLanes : lane + Half; });
  }
  if constexpr (2 * Half < kLanes) transpose<2 * Half>(block);
}

/// Transposes channels [0, depth) of up to kLanes rows: to[d * kPanelRows + row]. Missing rows
/// become
/// 0. A word is one float or two bfloat16 channels.
inline void transpose_rows(const float* from, size_t rows, size_t dim, size_t depth, float* to) {
  size_t d = 0;
  for (; d + kLanes <= depth; d += kLanes) {
    Words block[kLanes] = {};
    for (size_t r = 0; r < rows; ++r) block[r] = load<Words>(from + r * dim + d);
    transpose(block);
    for (size_t i = 0; i < kLanes; ++i) {
      __builtin_memcpy(to + (d + i) * kPanelRows, &block[i], sizeof(Words));
    }
  }
  for (; d < depth; ++d) {
    for (size_t r = 0; r < kLanes; ++r)
      to[d * kPanelRows + r] = r < rows ? from[r * dim + d] : 0.0F;
  }
}

inline void transpose_rows(const uint16_t* from, size_t rows, size_t dim, size_t depth, float* to) {
  size_t d = 0;
  for (; d + 2 * kLanes <= depth; d += 2 * kLanes) {
    Words block[kLanes] = {};
    for (size_t r = 0; r < rows; ++r) block[r] = load<Words>(from + r * dim + d);
    transpose(block);
    for (size_t i = 0; i < kLanes; ++i) {
      const Words first = block[i] << 16U;
      const Words second = block[i] & 0xFFFF0000U;
      __builtin_memcpy(to + (d + 2 * i) * kPanelRows, &first, sizeof(Words));
      __builtin_memcpy(to + (d + 2 * i + 1) * kPanelRows, &second, sizeof(Words));
    }
  }
  for (; d < depth; ++d) {
    for (size_t r = 0; r < kLanes; ++r) {
      to[d * kPanelRows + r] = r < rows ? widen(from[r * dim + d]) : 0.0F;
    }
  }
}

/// Rows x kPanelRows sums, added to out [.., kPanelRows].
template <size_t Rows, typename Element>
void cross_tile(const Element* a, size_t dim, const float* panel, size_t depth, float* out) {
  float left[Rows][kPanelDepth];
  for (size_t i = 0; i < Rows; ++i) {
    for (size_t d = 0; d < depth; ++d) left[i][d] = widen(a[i * dim + d]);
  }
  Floats sums[Rows][2] = {};
  for (size_t d = 0; d < depth; ++d) {
    const Floats low = load<Floats>(panel + d * kPanelRows);
    const Floats high = load<Floats>(panel + d * kPanelRows + kLanes);
    for (size_t i = 0; i < Rows; ++i) {
      sums[i][0] += left[i][d] * low;
      sums[i][1] += left[i][d] * high;
    }
  }
  for (size_t i = 0; i < Rows; ++i) {
    for (size_t half = 0; half < 2; ++half) {
      float* to = out + i * kPanelRows + half * kLanes;
      const Floats total = load<Floats>(to) + sums[i][half];
      __builtin_memcpy(to, &total, sizeof(total));
    }
  }
}

/// Multiplies rows [0, rows) of a with a panel of b.
template <typename Element>
void cross_panel(const Element* a, size_t rows, size_t dim, const float* panel, size_t depth,
                 float* out) {
  size_t i = 0;
  for (; i + kTileRows <= rows; i += kTileRows) {
    cross_tile<kTileRows>(a + i * dim, dim, panel, depth, out + i * kPanelRows);
  }
  for (; i + 2 <= rows; i += 2) cross_tile<2>(a + i * dim, dim, panel, depth, out + i * kPanelRows);
  for (; i < rows; ++i) cross_tile<1>(a + i * dim, dim, panel, depth, out + i * kPanelRows);
}

/// Rows of a per round. Their sums stay in the L1 cache.
constexpr size_t kBandRows = 64;

/// Multiplies up to kBandRows rows of a with up to kPanelRows rows of b.
template <typename Element>
void cross_band(const Element* a, size_t rows_a, const Element* b, size_t rows_b, size_t dim,
                size_t segments, size_t stride, float* out, size_t out_stride) {
  alignas(kBytes) float sums[kBandRows * kPanelRows] = {};
  alignas(kBytes) float panel[kPanelDepth * kPanelRows];
  const size_t first = rows_b < kLanes ? rows_b : kLanes;
  for (size_t segment = 0; segment < segments; ++segment, a += stride, b += stride) {
    for (size_t d = 0; d < dim; d += kPanelDepth) {
      const size_t depth = dim - d < kPanelDepth ? dim - d : kPanelDepth;
      transpose_rows(b + d, first, dim, depth, panel);
      transpose_rows(b + first * dim + d, rows_b - first, dim, depth, panel + kLanes);
      cross_panel(a + d, rows_a, dim, panel, depth, sums);
    }
  }
  for (size_t i = 0; i < rows_a; ++i) {
    __builtin_memcpy(out + i * out_stride, sums + i * kPanelRows, rows_b * sizeof(float));
  }
}

template <typename Element>
void cross(const Element* a, const Element* b, size_t rows, size_t dim, size_t segments,
           size_t stride, float* out) {
  for (size_t i = 0; i < rows; i += kBandRows) {
    const size_t rows_a = rows - i < kBandRows ? rows - i : kBandRows;
    for (size_t j = 0; j < rows; j += kPanelRows) {
      const size_t rows_b = rows - j < kPanelRows ? rows - j : kPanelRows;
      cross_band(a + i * dim, rows_a, b + j * dim, rows_b, dim, segments, stride,
                 out + i * rows + j, rows);
    }
  }
}

struct ErrorSums {
  Floats squared{}, absolute{}, reference{}, dot{};
  void add(const MergedRow& row, Floats external, Floats internal, Floats source) {
    const Floats gap = external - internal;
    const Floats merged = internal + row.weight * gap;
    const Floats error = row.weight_change * gap + row.source_weight * (source - external);
    squared += error * error;
    absolute += as_floats(reinterpret_cast<Words>(error) & 0x7FFFFFFFU);
    reference += merged * merged;
    dot += merged * (merged + error);
  }
};

MergeError merge_error(const MergedRow& row, size_t dim) {
  ErrorSums sums;
  size_t d = 0;
  for (; d + kLanes <= dim; d += kLanes) {
    sums.add(row, load<Floats>(row.external + d), load<Floats>(row.internal + d),
             load<Floats>(row.source + d));
  }
  if (d < dim) {  // pad with zeros, which add nothing
    Floats rest[3] = {};
    __builtin_memcpy(&rest[0], row.external + d, (dim - d) * sizeof(float));
    __builtin_memcpy(&rest[1], row.internal + d, (dim - d) * sizeof(float));
    __builtin_memcpy(&rest[2], row.source + d, (dim - d) * sizeof(float));
    sums.add(row, rest[0], rest[1], rest[2]);
  }
  const Quad squared = quarter(sums.squared);
  const Quad absolute = quarter(sums.absolute);
  const Quad reference = quarter(sums.reference);
  const Quad dot = quarter(sums.dot);
  const auto total = [](Quad quad) { return (quad[0] + quad[2]) + (quad[1] + quad[3]); };
  return MergeError{total(squared), total(absolute), total(reference), total(dot)};
}

constexpr RowProductKernels make_row_products(const char* instruction_set) {
  return RowProductKernels{instruction_set,    &all_rows<uint16_t>, &all_rows<float>,
                           &cosines<uint16_t>, &cosines<float>,     &cross<uint16_t>,
                           &cross<float>,      &merge_error};
}

}  // namespace
}  // namespace blockscope
