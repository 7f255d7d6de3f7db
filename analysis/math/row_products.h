// The inner loops of cosines and reuse errors: sums over the channels of rows (a·b, a·a and b·b
// from bfloat16 or float32 words), accumulated in several float32 lanes. They are compiled once per
// instruction set. The files include no library header, because an inline function compiled for a
// wide instruction set could then be linked into other code.
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

// Smaller squares lose bits to underflow. Larger squares may have overflowed.
constexpr float kSmallestSquare = 1e-24F;
constexpr float kLargestSquare = 1e36F;

/// One position of the merge ref = internal + w (external - internal). With the external pair of
/// `source` instead, the error is e = (w_src - w) (external - internal) + w_src (source -
/// external).
struct MergedRow {
  const float* external;  ///< [dim], like the other two
  const float* internal;
  const float* source;
  float weight;         ///< w
  float source_weight;  ///< w_src
  float weight_change;  ///< w_src - w, which the caller computes in double
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

  /// The cosines of the rows from the same sums, divided in double. NaN if a squared length is NaN
  /// or outside [kSmallestSquare, kLargestSquare], where float32 sums are not exact enough.
  /// square_a: the squares of a's rows from an earlier call, or null. square_b: receives the
  /// squares of b's rows, or null; may be square_a.
  void (*cosines_bf16)(const uint16_t* a, const uint16_t* b, size_t rows, size_t dim,
                       const float* square_a, float* square_b, double* out);
  void (*cosines_f32)(const float* a, const float* b, size_t rows, size_t dim,
                      const float* square_a, float* square_b, double* out);

  /// All dot products of the rows of a and b: out[i * rows + j] = a_i . b_j. A row is the
  /// concatenation of `segments` pieces of `dim` elements that are `stride` elements apart. ([head,
  /// position, channel] with the heads concatenated has stride = positions * channels.)
  void (*cross_bf16)(const uint16_t* a, const uint16_t* b, size_t rows, size_t dim, size_t segments,
                     size_t stride, float* out);
  void (*cross_f32)(const float* a, const float* b, size_t rows, size_t dim, size_t segments,
                    size_t stride, float* out);

  MergeError (*merge_error)(const MergedRow& row, size_t dim);
};

extern const RowProductKernels kRowProductsBaseline;
extern const RowProductKernels kRowProductsAvx2;
extern const RowProductKernels kRowProductsAvx512;

/// The fastest variant that this processor can run.
const RowProductKernels& best_row_products();

/// The variants that this processor can run, fastest first. `count`: their number, at least one.
const RowProductKernels* const* available_row_products(size_t* count);

}  // namespace blockscope
