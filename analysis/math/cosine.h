// Cosines between the rows of two arrays, in the types and layout of the file.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "analysis/pass/array_view.h"

namespace blockscope {

/// Cosines of one column (such as a head) over its positions.
struct CosineSum {
  double sum = 0.0;
  std::int64_t terms = 0;       ///< positions in the sum
  std::int64_t non_finite = 0;  ///< positions left out: a NaN or infinity in one of the vectors
  std::int64_t zero = 0;        ///< positions left out: a vector of length 0 has no direction
};

/// Squares that one pair of arrays keeps for the next pair, if b of this pair is a of the next.
struct KeptSquares {
  std::vector<float> squares;  ///< of the rows of a if `known`; after the call, those of b
  bool known = false;
};

/// a, b: [columns, positions, dim] of one type, bf16 or f32. Position i counts if valid_a[i] and
/// valid_b[i] (both of length `positions`) are not 0. One result per column.
///
/// Sums are float32, or double for vectors with squares outside the range of float32. With `kept`,
/// the squares of a are not computed again, and the result is the same to the bit. Throws
/// std::logic_error if the sizes contradict each other.
void sum_cosines(const ArrayView& a, const ArrayView& b, std::size_t columns,
                 std::span<const std::uint8_t> valid_a, std::span<const std::uint8_t> valid_b,
                 std::vector<CosineSum>& out, KeptSquares* kept = nullptr);

/// The cosine of two rows of `dim` floats, with sums as above. NaN: a value is not finite;
/// infinity: a row has length 0.
double row_cosine(const float* a, const float* b, std::size_t dim);

/// Cosines of all pairs of positions: out[i * positions + j] = cos(a_i, b_j). The columns are
/// concatenated to vectors of columns * dim channels. NaN if a position is not valid, a vector has
/// length 0, or a value is not finite. Shapes and errors as above.
void cross_cosines(const ArrayView& a, const ArrayView& b, std::size_t columns,
                   std::span<const std::uint8_t> valid_a, std::span<const std::uint8_t> valid_b,
                   std::vector<float>& out);

}  // namespace blockscope
