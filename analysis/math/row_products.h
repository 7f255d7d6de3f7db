// The inner loops behind cosines and reuse errors: sums over the channels of rows (a·b, a·a and b·b
// straight from bfloat16 or float32 words), accumulated in several float32 lanes. Compiled once per
// instruction set; the files include no library header, so that no inline function of a wide
// instruction set leaks out.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace blockscope {

/// Sums of one pair of rows.
struct RowProducts {
  float dot;       ///< a . b
  float square_a;  ///< a . a
  float square_b;  ///< b . b
};

// Squares below lose bits to underflow, squares above may have overflowed on the way.
constexpr float kSmallestSquare = 1e-24F;
constexpr float kLargestSquare = 1e36F;

/// One position of the merge ref = internal + w (external - internal), and what it is off by when
/// the external pair is `source`: e = (w_src - w) (external - internal) + w_src (source -
/// external).
struct MergedRow {
  const float* external;  ///< [dim], as the other two
  const float* internal;
  const float* source;
  float weight;         ///< w
  float source_weight;  ///< w_src
  float weight_change;  ///< w_src - w, as the caller has it from doubles
};

/// Sums over the channels.
struct MergeError {
  float squared;    ///< e e
  float absolute;   ///< |e|
  float reference;  ///< ref ref
  float dot;        ///< ref (ref + e)
};

/// a, b: [rows, dim], no alignment needed; out: [rows].
struct RowProductKernels {
  const char* instruction_set;
  void (*bf16)(const uint16_t* a, const uint16_t* b, size_t rows, size_t dim, RowProducts* out);
  void (*f32)(const float* a, const float* b, size_t rows, size_t dim, RowProducts* out);

  /// The cosines of the rows from the same sums, divided in double; NaN where a squared length is
  /// not in [kSmallestSquare, kLargestSquare] (or is NaN): float32 sums are not good enough there.
  /// square_a: the squares of a's rows if they are known from an earlier call, else null. square_b:
  /// where those of b's rows go, or null; may be square_a.
  void (*cosines_bf16)(const uint16_t* a, const uint16_t* b, size_t rows, size_t dim,
                       const float* square_a, float* square_b, double* out);
  void (*cosines_f32)(const float* a, const float* b, size_t rows, size_t dim,
                      const float* square_a, float* square_b, double* out);

  /// All dot products of the rows of a with those of b: out[i * rows + j] = a_i . b_j, where a row
  /// is the concatenation of `segments` pieces of `dim` elements, `stride` elements apart
  /// ([head, position, channel] with the heads concatenated: stride = positions * channels).
  void (*cross_bf16)(const uint16_t* a, const uint16_t* b, size_t rows, size_t dim, size_t segments,
                     size_t stride, float* out);
  void (*cross_f32)(const float* a, const float* b, size_t rows, size_t dim, size_t segments,
                    size_t stride, float* out);

  MergeError (*merge_error)(const MergedRow& row, size_t dim);
};

extern const RowProductKernels kRowProductsBaseline;
extern const RowProductKernels kRowProductsAvx2;
extern const RowProductKernels kRowProductsAvx512;

/// The fastest that this processor can run.
const RowProductKernels& best_row_products();

/// What this processor can run, the fastest first; `count` of them, at least one.
const RowProductKernels* const* available_row_products(size_t* count);

}  // namespace blockscope
