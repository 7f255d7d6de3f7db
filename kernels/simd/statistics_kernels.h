// A recorder's sums over rows of numbers between two steps, compiled once per instruction set from
// statistics_kernels_impl.h and chosen at run time. No torch header, for the reason in
// tile_kernels.h.
#pragma once

#include <cstdint>

#include "kernels/simd/element.h"
#include "kernels/simd/loop_variants.h"

namespace blockscope {

// Rows of two merges with the same internal side (FlashBlock, arXiv 2602.05305, eq. 9). With a pair
// from an earlier step: got = internal + source_weight * (source - internal). With the pair of this
// step: ref = internal + external_weight * (external - internal).
struct MergeRows {
  const float* source;           // [rows, dim]
  const float* external;         // [rows, dim]
  const float* internal;         // [rows, dim]
  const float* source_weight;    // [rows], weight of the external side; NaN leaves a row out
  const float* external_weight;  // [rows], likewise
};

// Sums over elements, with e = got - ref.
struct ErrorSums {
  double squared = 0.0;    // sum e^2
  double absolute = 0.0;   // sum |e|
  double reference = 0.0;  // sum ref^2
  double dot = 0.0;        // sum ref * got
};

// What the rows of a MergeRows with a kept pair are compared by, [rows] each.
struct KeptRows {
  const float* source_lse;
  const float* external_lse;
  const uint8_t* kind;  // below kKindsOfRows
};
constexpr int64_t kKindsOfRows = 3;

// Sums over the rows of one kind in which both lse are finite.
struct KeptSums {
  double rows = 0.0;
  double cosine = 0.0;     // sum cos(source, external); 0 for a zero vector
  double lse = 0.0;        // sum |source_lse - external_lse|
  double squared = 0.0;    // sum e^2 over elements, as in ErrorSums
  double reference = 0.0;  // sum ref^2
};

struct StatisticsKernels {
  const char* name;

  // cos(a, b) over `dim` numbers, summed in double; 0 if one of them is a zero vector.
  double (*cosine)(const float* a, const float* b, int64_t dim);

  ErrorSums (*merge_errors)(const MergeRows& merge, int64_t num_rows, int64_t dim);

  // The same, and sums for each kind of rows: sums [kKindsOfRows].
  ErrorSums (*kept_errors)(const MergeRows& merge, const KeptRows& kept, int64_t num_rows,
                           int64_t dim, KeptSums* sums);

  // weight[i] = exp(lse_external[i]) / (exp(lse_external[i]) + exp(lse_internal[i])). Exact if one
  // side is -inf; both must not be.
  void (*external_weights)(const float* lse_external, const float* lse_internal, int64_t count,
                           float* weight);

  // 1 / |x|_2, which scales x to unit length; finite for a zero vector.
  float (*unit_scale)(Element element, const void* x, int64_t dim);

  // |a / |a| - b * b_scale|_2. Also adds the difference to `difference` [dim]. If a holds a NaN,
  // returns NaN and adds nothing. b_scale: unit_scale of b.
  double (*unit_gap)(Element element, const void* a, const void* b, float b_scale, int64_t dim,
                     float* difference);

  // log(sum(exp(x))) over `count` numbers.
  double (*log_sum_exp)(Element element, const void* x, int64_t count);

  // KL(p || q) in nats for p = exp(first - lse_first), q = exp(now - lse_now) over `count` numbers.
  // Numbers with p = 0 add nothing.
  double (*divergence)(Element element, const void* first, double lse_first, const void* now,
                       double lse_now, int64_t count);
};

extern const StatisticsKernels kStatisticsKernelsBaseline;
extern const StatisticsKernels kStatisticsKernelsAvx2;
extern const StatisticsKernels kStatisticsKernelsAvx512;

// The variants that this machine can run.
inline const LoopVariants<StatisticsKernels>& available_statistics_kernels() {
  static const LoopVariants<StatisticsKernels> loops(BLOCKSCOPE_VARIANTS_OF(kStatisticsKernels));
  return loops;
}

inline const StatisticsKernels& statistics_kernels() {
  return *available_statistics_kernels().variants[0];
}

}  // namespace blockscope
