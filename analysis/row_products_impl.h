// The kernels of row_products.h, written with the compiler's vector types for the width that the
// including file is compiled for. Included once per instruction set; everything has internal
// linkage.
#pragma once

#include "analysis/row_products.h"

namespace blockscope {
namespace {

#if defined(__AVX512F__)
constexpr size_t kBytes = 64;
#elif defined(__AVX2__)
constexpr size_t kBytes = 32;
#else
constexpr size_t kBytes = 16;
#endif
constexpr size_t kLanes = kBytes / sizeof(float);

typedef float Floats __attribute__((vector_size(kBytes)));
typedef uint32_t Words __attribute__((vector_size(kBytes)));

template <typename Vector, typename Element>
inline Vector load(const Element* from) {
  Vector vector;
  __builtin_memcpy(&vector, from, sizeof(vector));
  return vector;
}

inline Floats as_floats(Words words) { return reinterpret_cast<Floats>(words); }

inline float sum(Floats values) {
  float total = 0.0F;
  for (size_t i = 0; i < kLanes; ++i) total += values[i];
  return total;
}

inline float widen(uint16_t word) {
  const uint32_t bits = static_cast<uint32_t>(word) << 16U;
  float value;
  __builtin_memcpy(&value, &bits, sizeof(value));
  return value;
}

inline float widen(float value) { return value; }

struct Sums {
  Floats dot{}, square_a{}, square_b{};
  void add(Floats a, Floats b) {
    dot += a * b;
    square_a += a * a;
    square_b += b * b;
  }
};

/// One load of bfloat16 pairs gives two vectors of floats: a word of two elements shifted left is
/// the first of them, with its lower half cleared the second.
inline void add_pairs(const uint16_t* a, const uint16_t* b, Sums& even, Sums& odd) {
  const Words x = load<Words>(a);
  const Words y = load<Words>(b);
  even.add(as_floats(x << 16U), as_floats(y << 16U));
  odd.add(as_floats(x & 0xFFFF0000U), as_floats(y & 0xFFFF0000U));
}

inline void add_pairs(const float* a, const float* b, Sums& even, Sums& odd) {
  even.add(load<Floats>(a), load<Floats>(b));
  odd.add(load<Floats>(a + kLanes), load<Floats>(b + kLanes));
}

template <typename Element>
RowProducts one_row(const Element* a, const Element* b, size_t dim) {
  Sums even;
  Sums odd;
  size_t i = 0;
  for (; i + 2 * kLanes <= dim; i += 2 * kLanes) add_pairs(a + i, b + i, even, odd);
  RowProducts row{sum(even.dot + odd.dot), sum(even.square_a + odd.square_a),
                  sum(even.square_b + odd.square_b)};
  for (; i < dim; ++i) {
    const float x = widen(a[i]);
    const float y = widen(b[i]);
    row.dot += x * y;
    row.square_a += x * x;
    row.square_b += y * y;
  }
  return row;
}

template <typename Element>
void all_rows(const Element* a, const Element* b, size_t rows, size_t dim, RowProducts* out) {
  for (size_t r = 0; r < rows; ++r) out[r] = one_row(a + r * dim, b + r * dim, dim);
}

/// The first and the second floats of a load (see add_pairs).
struct Pair {
  Floats even, odd;
};

inline Pair load_pair(const uint16_t* from) {
  const Words words = load<Words>(from);
  return {as_floats(words << 16U), as_floats(words & 0xFFFF0000U)};
}

inline Pair load_pair(const float* from) {
  return {load<Floats>(from), load<Floats>(from + kLanes)};
}

/// RowsA x RowsB dot products at once: every load is used several times.
template <size_t RowsA, size_t RowsB, typename Element>
void cross_tile(const Element* a, const Element* b, size_t dim, size_t segments, size_t stride,
                float* out, size_t out_stride) {
  Floats sums[RowsA][RowsB] = {};
  float tails[RowsA][RowsB] = {};
  for (size_t segment = 0; segment < segments; ++segment, a += stride, b += stride) {
    size_t d = 0;
    for (; d + 2 * kLanes <= dim; d += 2 * kLanes) {
      Pair right[RowsB];
      for (size_t j = 0; j < RowsB; ++j) right[j] = load_pair(b + j * dim + d);
      for (size_t i = 0; i < RowsA; ++i) {
        const Pair left = load_pair(a + i * dim + d);
        for (size_t j = 0; j < RowsB; ++j) {
          sums[i][j] += left.even * right[j].even;
          sums[i][j] += left.odd * right[j].odd;
        }
      }
    }
    for (; d < dim; ++d) {
      for (size_t i = 0; i < RowsA; ++i) {
        for (size_t j = 0; j < RowsB; ++j) {
          tails[i][j] += widen(a[i * dim + d]) * widen(b[j * dim + d]);
        }
      }
    }
  }
  for (size_t i = 0; i < RowsA; ++i) {
    for (size_t j = 0; j < RowsB; ++j) out[i * out_stride + j] = sum(sums[i][j]) + tails[i][j];
  }
}

/// A strip of RowsA rows of a against all rows of b.
template <size_t RowsA, typename Element>
void cross_strip(const Element* a, const Element* b, size_t rows, size_t dim, size_t segments,
                 size_t stride, float* out) {
  size_t j = 0;
  for (; j + 2 <= rows; j += 2) {
    cross_tile<RowsA, 2>(a, b + j * dim, dim, segments, stride, out + j, rows);
  }
  for (; j < rows; ++j) {
    cross_tile<RowsA, 1>(a, b + j * dim, dim, segments, stride, out + j, rows);
  }
}

template <typename Element>
void cross(const Element* a, const Element* b, size_t rows, size_t dim, size_t segments,
           size_t stride, float* out) {
  size_t i = 0;
  for (; i + 4 <= rows; i += 4) {
    cross_strip<4>(a + i * dim, b, rows, dim, segments, stride, out + i * rows);
  }
  for (; i < rows; ++i) {
    cross_strip<1>(a + i * dim, b, rows, dim, segments, stride, out + i * rows);
  }
}

constexpr RowProductKernels make_row_products(const char* instruction_set) {
  return RowProductKernels{instruction_set, &all_rows<uint16_t>, &all_rows<float>, &cross<uint16_t>,
                           &cross<float>};
}

}  // namespace
}  // namespace blockscope
