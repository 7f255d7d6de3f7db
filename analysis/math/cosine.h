// Cosines between the rows of two arrays, as they lie in the file.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "analysis/pass/array_view.h"

namespace blockscope {

/// Cosines of one column (a head, say) over its positions.
struct CosineSum {
  double sum = 0.0;
  std::int64_t terms = 0;       ///< positions in the sum
  std::int64_t non_finite = 0;  ///< positions left out: a NaN or infinity in one of the vectors
  std::int64_t zero = 0;        ///< positions left out: a vector of length 0 has no direction
};

/// What one pair of arrays leaves for the next, whose a is this one's b.
struct KeptSquares {
  std::vector<float> squares;  ///< of the rows of a when `known`; then those of b
  bool known = false;
};

/// a, b: [columns, positions, dim] of one type, bf16 or f32. Position i counts where valid_a[i] and
/// valid_b[i] are not 0 (both of length `positions`). One result per column.
///
/// Sums are float32, and double for vectors whose squares leave the range of float32. With `kept`
/// the squares of a are not computed again; the result is the same to the bit. Throws
/// std::logic_error when the sizes contradict each other.
void sum_cosines(const ArrayView& a, const ArrayView& b, std::size_t columns,
                 std::span<const std::uint8_t> valid_a, std::span<const std::uint8_t> valid_b,
                 std::vector<CosineSum>& out, KeptSquares* kept = nullptr);

/// Cosines of all pairs of positions: out[i * positions + j] = cos(a_i, b_j) with the columns
/// concatenated to vectors of columns * dim channels; NaN where a position is not valid, a vector
/// has no length, or a value is not finite. Shapes and errors as above.
void cross_cosines(const ArrayView& a, const ArrayView& b, std::size_t columns,
                   std::span<const std::uint8_t> valid_a, std::span<const std::uint8_t> valid_b,
                   std::vector<float>& out);

}  // namespace blockscope
