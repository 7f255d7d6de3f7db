// Row products and cosines of row_products.h, in the compiler's vector types for the width that the
// including file is compiled for. Part of row_products_impl.h; everything has internal linkage. The
// file is long because all of it is compiled once per instruction set without another header.
#pragma once

#include "analysis/math/row_products.h"
#include "kernels/simd/shuffle_impl.h"

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

typedef float Quad __attribute__((vector_size(16)));

/// Adds the lanes up to four.
inline Quad quarter(Floats values) {
  constexpr size_t kQuads = kLanes / 4;
  Quad quads[kQuads];
  __builtin_memcpy(quads, &values, sizeof(values));
  for (size_t half = kQuads / 2; half > 0; half /= 2) {
    for (size_t i = 0; i < half; ++i) quads[i] += quads[i + half];
  }
  return quads[0];
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
  template <bool SquareA>
  void add(Floats a, Floats b) {
    dot += a * b;
    if constexpr (SquareA) square_a += a * a;
    square_b += b * b;
  }
};

/// One load of bfloat16 pairs gives two vectors of floats. A word holds two elements: shifted left
/// it is the first one, with its lower half cleared the second one.
template <bool SquareA>
inline void add_pairs(const uint16_t* a, const uint16_t* b, Sums& even, Sums& odd) {
  const Words x = load<Words>(a);
  const Words y = load<Words>(b);
  even.add<SquareA>(as_floats(x << 16U), as_floats(y << 16U));
  odd.add<SquareA>(as_floats(x & 0xFFFF0000U), as_floats(y & 0xFFFF0000U));
}

template <bool SquareA>
inline void add_pairs(const float* a, const float* b, Sums& even, Sums& odd) {
  even.add<SquareA>(load<Floats>(a), load<Floats>(b));
  odd.add<SquareA>(load<Floats>(a + kLanes), load<Floats>(b + kLanes));
}

/// The sums over the lanes of all three vectors at once. One by one, they would take longer than a
/// row of 128 channels.
inline RowProducts totals(const Sums& sums) {
  const Quad dot = quarter(sums.dot);
  const Quad a = quarter(sums.square_a);
  Quad b = quarter(sums.square_b);
  const Quad dot_a = shuffle(dot, a, [](size_t i) { return i / 2 + i % 2 * 4; }) +
                     shuffle(dot, a, [](size_t i) { return i / 2 + i % 2 * 4 + 2; });
  b += shuffle(b, b, [](size_t i) { return i ^ 2; });
  const Quad all = shuffle(dot_a, b, [](size_t i) { return i < 2 ? i : 4; }) +
                   shuffle(dot_a, b, [](size_t i) { return i < 2 ? i + 2 : 5; });
  return RowProducts{all[0], all[1], all[2]};
}

/// Sums over the channels in whole vectors. Without SquareA, the squares of a stay 0.
template <bool SquareA, typename Element>
[[gnu::always_inline]] inline Sums row_sums(const Element* a, const Element* b, size_t dim) {
  Sums even;
  Sums odd;
  for (size_t i = 0; i + 2 * kLanes <= dim; i += 2 * kLanes) {
    add_pairs<SquareA>(a + i, b + i, even, odd);
  }
  even.dot += odd.dot;
  even.square_a += odd.square_a;
  even.square_b += odd.square_b;
  return even;
}

/// The remaining channels after row_sums.
template <typename Element>
inline void add_rest(const Element* a, const Element* b, size_t dim, float& dot, float& square_a,
                     float& square_b) {
  for (size_t i = dim - dim % (2 * kLanes); i < dim; ++i) {
    const float x = widen(a[i]);
    const float y = widen(b[i]);
    dot += x * y;
    square_a += x * x;
    square_b += y * y;
  }
}

template <typename Element>
RowProducts one_row(const Element* a, const Element* b, size_t dim) {
  RowProducts row = totals(row_sums<true>(a, b, dim));
  add_rest(a, b, dim, row.dot, row.square_a, row.square_b);
  return row;
}

// The lanes of kLanes rows are added up together, in the order of totals(). This takes a third of
// the instructions and gives the same bits.

/// Sums of kLanes rows, by row.
struct GroupSums {
  float dot[kLanes], square_a[kLanes], square_b[kLanes];
};

/// Every second group of `Lanes` lanes of x, then of y, starting with group `First`.
template <size_t Lanes, size_t First>
inline Floats every_second(Floats x, Floats y) {
  return shuffle(x, y,
                 [](size_t lane) { return (2 * (lane / Lanes) + First) * Lanes + lane % Lanes; });
}

/// The four lanes that quarter() leaves of each of kLanes / 4 rows.
inline Floats quarters(const Floats* rows) {
  if constexpr (kLanes == 16) {
    const auto halves = [](Floats x, Floats y) {
      return every_second<8, 0>(x, y) + every_second<8, 1>(x, y);
    };
    const Floats low = halves(rows[0], rows[1]);
    const Floats high = halves(rows[2], rows[3]);
    return every_second<4, 0>(low, high) + every_second<4, 1>(low, high);
  } else if constexpr (kLanes == 8) {
    return every_second<4, 0>(rows[0], rows[1]) + every_second<4, 1>(rows[0], rows[1]);
  } else {
    return rows[0];
  }
}

/// Lanes i and j of x in each four, then those of y.
template <size_t I, size_t J>
inline Floats two_of_four(Floats x, Floats y) {
  return shuffle(x, y, [](size_t lane) {
    return (lane % 2 == 0 ? I : J) + lane / 4 * 4 + (lane % 4 < 2 ? 0 : kLanes);
  });
}

/// quads[g] has four lanes of each of kLanes / 4 rows, starting at row g * kLanes / 4. out: their
/// sums by row.
inline void add_up(const Floats* quads, float* out) {
  const Floats low = two_of_four<0, 1>(quads[0], quads[1]) + two_of_four<2, 3>(quads[0], quads[1]);
  const Floats high = two_of_four<0, 1>(quads[2], quads[3]) + two_of_four<2, 3>(quads[2], quads[3]);
  const Floats sums = two_of_four<0, 2>(low, high) + two_of_four<1, 3>(low, high);
  const Floats sorted =
      shuffle(sums, sums, [](size_t row) {  // lane 4 i + g has row g * kLanes / 4 + i
        return 4 * (row % (kLanes / 4)) + row / (kLanes / 4);
      });
  __builtin_memcpy(out, &sorted, sizeof(sorted));
}

template <bool SquareA, typename Element>
[[gnu::always_inline]] inline void group_sums(const Element* a, const Element* b, size_t dim,
                                              GroupSums& out) {
  Floats dot[4];
  Floats square_a[4];
  Floats square_b[4];
  for (size_t g = 0; g < 4; ++g) {
    Floats row_dot[kLanes / 4];
    Floats row_a[kLanes / 4];
    Floats row_b[kLanes / 4];
#pragma GCC unroll 4
    for (size_t i = 0; i < kLanes / 4; ++i) {  // in registers
      const size_t at = (g * (kLanes / 4) + i) * dim;
      const Sums sums = row_sums<SquareA>(a + at, b + at, dim);
      row_dot[i] = sums.dot;
      row_a[i] = sums.square_a;
      row_b[i] = sums.square_b;
    }
    dot[g] = quarters(row_dot);
    if constexpr (SquareA) square_a[g] = quarters(row_a);
    square_b[g] = quarters(row_b);
  }
  add_up(dot, out.dot);
  if constexpr (SquareA) add_up(square_a, out.square_a);
  add_up(square_b, out.square_b);
  if (dim % (2 * kLanes) == 0) return;
  for (size_t r = 0; r < kLanes; ++r) {
    add_rest(a + r * dim, b + r * dim, dim, out.dot[r], out.square_a[r], out.square_b[r]);
  }
}

/// The remaining rows of `rows`, fewer than a group.
template <typename Element>
inline void last_sums(const Element* a, const Element* b, size_t rows, size_t dim, GroupSums& out) {
  for (size_t r = 0; r < rows; ++r) {
    const RowProducts row = one_row(a + r * dim, b + r * dim, dim);
    out.dot[r] = row.dot;
    out.square_a[r] = row.square_a;
    out.square_b[r] = row.square_b;
  }
}

/// Calls `use` with the sums of up to kLanes rows, the first row and their number. Without SquareA,
/// the squares of a have no meaning.
template <bool SquareA, typename Element, typename Use>
[[gnu::always_inline]] inline void each_group(const Element* a, const Element* b, size_t rows,
                                              size_t dim, const Use& use) {
  GroupSums sums = {};
  size_t first = 0;
  for (; first + kLanes <= rows; first += kLanes) {
    group_sums<SquareA>(a + first * dim, b + first * dim, dim, sums);
    use(sums, first, kLanes);
  }
  if (first == rows) return;
  last_sums(a + first * dim, b + first * dim, rows - first, dim, sums);
  use(sums, first, rows - first);
}

/// The same, with unrolled loops for heads of 128 channels, which most models have.
template <bool SquareA, typename Element, typename Use>
inline void all_groups(const Element* a, const Element* b, size_t rows, size_t dim,
                       const Use& use) {
  constexpr size_t kUsual = 128;
  if (dim == kUsual) {
    each_group<SquareA>(a, b, rows, kUsual, use);
  } else {
    each_group<SquareA>(a, b, rows, dim, use);
  }
}

template <typename Element>
void all_rows(const Element* a, const Element* b, size_t rows, size_t dim, RowProducts* out) {
  all_groups<true>(a, b, rows, dim, [out](const GroupSums& sums, size_t first, size_t count) {
    for (size_t r = 0; r < count; ++r) {
      out[first + r] = RowProducts{sums.dot[r], sums.square_a[r], sums.square_b[r]};
    }
  });
}

/// A square out of range becomes NaN, and so does the cosine.
inline void mark_out_of_range(float* squares) {
  const Floats values = load<Floats>(squares);
  const Floats marked = ((values >= kSmallestSquare) & (values <= kLargestSquare))
                            ? values
                            : Floats{} + __builtin_nanf("");
  __builtin_memcpy(squares, &marked, sizeof(marked));
}

template <bool SquareA, typename Element>
void fill_cosines(const Element* a, const Element* b, size_t rows, size_t dim,
                  const float* square_a, float* square_b, double* out) {
  all_groups<SquareA>(a, b, rows, dim, [=](GroupSums& sums, size_t first, size_t count) {
    if constexpr (!SquareA) {
      __builtin_memcpy(sums.square_a, square_a + first, count * sizeof(float));
    }
    if (square_b != nullptr) {
      __builtin_memcpy(square_b + first, sums.square_b, count * sizeof(float));
    }
    mark_out_of_range(sums.square_a);
    mark_out_of_range(sums.square_b);
    double values[kLanes];
    for (size_t r = 0; r < kLanes; ++r) {
      values[r] =
          static_cast<double>(sums.dot[r]) / __builtin_sqrt(static_cast<double>(sums.square_a[r]) *
                                                            static_cast<double>(sums.square_b[r]));
    }
    __builtin_memcpy(out + first, values, count * sizeof(double));
  });
}

template <typename Element>
void cosines(const Element* a, const Element* b, size_t rows, size_t dim, const float* square_a,
             float* square_b, double* out) {
  if (square_a == nullptr) {
    fill_cosines<true>(a, b, rows, dim, square_a, square_b, out);
  } else {
    fill_cosines<false>(a, b, rows, dim, square_a, square_b, out);
  }
}

}  // namespace
}  // namespace blockscope
