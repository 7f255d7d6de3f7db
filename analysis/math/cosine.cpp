#include "analysis/math/cosine.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <stdexcept>

#include "analysis/math/row_products.h"

namespace blockscope {
namespace {

constexpr double kNoSum = std::numeric_limits<double>::quiet_NaN();

float widen(std::uint16_t word) { return std::bit_cast<float>(std::uint32_t{word} << 16U); }
float widen(float value) { return value; }

const RowProductKernels& kernels() {
  static const RowProductKernels& best = best_row_products();
  return best;
}

void multiply(const std::uint16_t* a, const std::uint16_t* b, std::size_t rows, std::size_t dim,
              RowProducts* out) {
  kernels().bf16(a, b, rows, dim, out);
}

void multiply(const float* a, const float* b, std::size_t rows, std::size_t dim, RowProducts* out) {
  kernels().f32(a, b, rows, dim, out);
}

void fill_cosines(const std::uint16_t* a, const std::uint16_t* b, std::size_t rows, std::size_t dim,
                  const float* square_a, float* square_b, double* out) {
  kernels().cosines_bf16(a, b, rows, dim, square_a, square_b, out);
}

void fill_cosines(const float* a, const float* b, std::size_t rows, std::size_t dim,
                  const float* square_a, float* square_b, double* out) {
  kernels().cosines_f32(a, b, rows, dim, square_a, square_b, out);
}

bool in_range(const RowProducts& row) {
  const auto fits = [](float square) {
    return square >= kSmallestSquare && square <= kLargestSquare;
  };
  return fits(row.square_a) && fits(row.square_b);
}

/// NaN: a value is not finite; infinity: a vector has length 0.
template <typename Element>
double cosine_in_double(const Element* a, const Element* b, std::size_t dim) {
  double dot = 0.0;
  double square_a = 0.0;
  double square_b = 0.0;
  for (std::size_t i = 0; i < dim; ++i) {
    const double x = widen(a[i]);
    const double y = widen(b[i]);
    dot += x * y;
    square_a += x * x;
    square_b += y * y;
  }
  if (!std::isfinite(square_a) || !std::isfinite(square_b)) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  if (square_a == 0.0 || square_b == 0.0) return std::numeric_limits<double>::infinity();
  return dot / (std::sqrt(square_a) * std::sqrt(square_b));
}

template <typename Element>
void sum_typed(const Element* a, const Element* b, std::size_t dim,
               std::span<const std::uint8_t> valid_a, std::span<const std::uint8_t> valid_b,
               std::vector<CosineSum>& out, KeptSquares* kept) {
  const std::size_t positions = valid_a.size();
  thread_local std::vector<double> cosines;
  cosines.resize(out.size() * positions);
  if (kept != nullptr) {
    const bool known = kept->known && kept->squares.size() == cosines.size();
    kept->squares.resize(cosines.size());
    float* const squares = kept->squares.data();
    fill_cosines(a, b, cosines.size(), dim, known ? squares : nullptr, squares, cosines.data());
    kept->known = true;
  } else {
    fill_cosines(a, b, cosines.size(), dim, nullptr, nullptr, cosines.data());
  }
  const auto is_valid = [](std::uint8_t valid) { return valid != 0; };
  const bool all = std::ranges::all_of(valid_a, is_valid) && std::ranges::all_of(valid_b, is_valid);
  const double* next = cosines.data();
  for (CosineSum& column : out) {
    const double sum = all ? std::accumulate(next, next + positions, 0.0) : kNoSum;
    if (std::isfinite(sum)) {  // the usual case
      column.sum = sum;
      column.terms = static_cast<std::int64_t>(positions);
      next += positions;
      a += positions * dim;
      b += positions * dim;
      continue;
    }
    for (std::size_t i = 0; i < positions; ++i, ++next, a += dim, b += dim) {
      if (valid_a[i] == 0 || valid_b[i] == 0) continue;
      const double cosine = std::isnan(*next) ? cosine_in_double(a, b, dim) : *next;
      if (std::isfinite(cosine)) {
        column.sum += cosine;
        ++column.terms;
      } else if (std::isnan(cosine)) {
        ++column.non_finite;
      } else {
        ++column.zero;
      }
    }
  }
}

void multiply_all(const std::uint16_t* a, const std::uint16_t* b, std::size_t rows, std::size_t dim,
                  std::size_t columns, float* out) {
  kernels().cross_bf16(a, b, rows, dim, columns, rows * dim, out);
}

void multiply_all(const float* a, const float* b, std::size_t rows, std::size_t dim,
                  std::size_t columns, float* out) {
  kernels().cross_f32(a, b, rows, dim, columns, rows * dim, out);
}

/// Row i of an array [columns, rows, dim] with the columns concatenated.
template <typename Element>
std::vector<double> concatenated(const Element* values, std::size_t i, std::size_t rows,
                                 std::size_t dim, std::size_t columns) {
  std::vector<double> row;
  row.reserve(columns * dim);
  for (std::size_t column = 0; column < columns; ++column) {
    const Element* from = values + (column * rows + i) * dim;
    for (std::size_t d = 0; d < dim; ++d) row.push_back(widen(from[d]));
  }
  return row;
}

/// Squared lengths of the concatenated rows of both arrays.
template <typename Element>
void sum_squares(const Element* a, const Element* b, std::size_t rows, std::size_t dim,
                 std::size_t columns, std::vector<float>& square_a, std::vector<float>& square_b) {
  thread_local std::vector<RowProducts> products;
  products.resize(rows);
  square_a.assign(rows, 0.0F);
  square_b.assign(rows, 0.0F);
  for (std::size_t column = 0; column < columns; ++column, a += rows * dim, b += rows * dim) {
    multiply(a, b, rows, dim, products.data());
    for (std::size_t i = 0; i < rows; ++i) {
      square_a[i] += products[i].square_a;
      square_b[i] += products[i].square_b;
    }
  }
}

double cosine_in_double(const std::vector<double>& a, const std::vector<double>& b) {
  double dot = 0.0;
  double square_a = 0.0;
  double square_b = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    dot += a[i] * b[i];
    square_a += a[i] * a[i];
    square_b += b[i] * b[i];
  }
  return dot / (std::sqrt(square_a) * std::sqrt(square_b));
}

template <typename Element>
void cross_typed(const Element* a, const Element* b, std::size_t columns, std::size_t dim,
                 std::span<const std::uint8_t> valid_a, std::span<const std::uint8_t> valid_b,
                 std::vector<float>& out) {
  const std::size_t rows = valid_a.size();
  thread_local std::vector<float> square_a;
  thread_local std::vector<float> square_b;
  sum_squares(a, b, rows, dim, columns, square_a, square_b);
  multiply_all(a, b, rows, dim, columns, out.data());
  for (std::size_t i = 0; i < rows; ++i) {
    for (std::size_t j = 0; j < rows; ++j) {
      float& value = out[i * rows + j];
      double cosine = std::numeric_limits<double>::quiet_NaN();
      if (valid_a[i] != 0 && valid_b[j] != 0) {
        const RowProducts row{value, square_a[i], square_b[j]};
        cosine = in_range(row)
                     ? double{row.dot} / std::sqrt(double{row.square_a} * double{row.square_b})
                     : cosine_in_double(concatenated(a, i, rows, dim, columns),
                                        concatenated(b, j, rows, dim, columns));
      }
      value = static_cast<float>(cosine);
    }
  }
}

/// Channels of arrays [columns, positions, dim].
std::size_t channels(const ArrayView& a, const ArrayView& b, std::size_t columns,
                     std::span<const std::uint8_t> valid_a, std::span<const std::uint8_t> valid_b) {
  const std::size_t rows = columns * valid_a.size();
  if (a.type != b.type || a.size != b.size || valid_a.size() != valid_b.size() ||
      (rows == 0 ? a.size != 0 : a.size % rows != 0)) {
    throw std::logic_error("cosines: expected two arrays of one shape and type");
  }
  return rows == 0 ? 0 : a.size / rows;
}

}  // namespace

double row_cosine(const float* a, const float* b, std::size_t dim) {
  RowProducts row{};
  multiply(a, b, 1, dim, &row);
  if (!in_range(row)) return cosine_in_double(a, b, dim);
  return double{row.dot} / std::sqrt(double{row.square_a} * double{row.square_b});
}

void cross_cosines(const ArrayView& a, const ArrayView& b, std::size_t columns,
                   std::span<const std::uint8_t> valid_a, std::span<const std::uint8_t> valid_b,
                   std::vector<float>& out) {
  const std::size_t dim = channels(a, b, columns, valid_a, valid_b);
  out.assign(valid_a.size() * valid_b.size(), std::numeric_limits<float>::quiet_NaN());
  if (dim == 0) return;
  if (a.type == ViewType::bf16) {
    cross_typed(reinterpret_cast<const std::uint16_t*>(a.data),
                reinterpret_cast<const std::uint16_t*>(b.data), columns, dim, valid_a, valid_b,
                out);
  } else {
    cross_typed(a.floats().data(), b.floats().data(), columns, dim, valid_a, valid_b, out);
  }
}

void sum_cosines(const ArrayView& a, const ArrayView& b, std::size_t columns,
                 std::span<const std::uint8_t> valid_a, std::span<const std::uint8_t> valid_b,
                 std::vector<CosineSum>& out, KeptSquares* kept) {
  out.assign(columns, CosineSum{});
  const std::size_t dim = channels(a, b, columns, valid_a, valid_b);
  if (dim == 0) return;
  if (a.type == ViewType::bf16) {
    sum_typed(reinterpret_cast<const std::uint16_t*>(a.data),
              reinterpret_cast<const std::uint16_t*>(b.data), dim, valid_a, valid_b, out, kept);
  } else {
    sum_typed(a.floats().data(), b.floats().data(), dim, valid_a, valid_b, out, kept);
  }
}

}  // namespace blockscope
