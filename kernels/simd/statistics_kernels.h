// What a recorder sums over rows of numbers between two steps, compiled once per instruction set
// from statistics_kernels_impl.h and chosen at run time. No torch header, for the reason in
// tile_kernels.h.
#pragma once

#include <cstdint>

#include "kernels/simd/element.h"
#include "kernels/simd/loop_variants.h"

namespace blockscope {

// Rows of two merges with the same internal side: got = internal + source_weight * (source -
// internal) of a pair from an earlier step, ref = internal + external_weight * (external -
// internal) of this one (FlashBlock, arXiv 2602.05305, eq. 9).
struct MergeRows {
  const float* source;           // [rows, dim]
  const float* external;         // [rows, dim]
  const float* internal;         // [rows, dim]
  const float* source_weight;    // [rows], the external side's share; NaN leaves a row out
  const float* external_weight;  // [rows], likewise
};

// Sums over elements, e = got - ref.
struct ErrorSums {
  double squared = 0.0;    // sum e^2
  double absolute = 0.0;   // sum |e|
  double reference = 0.0;  // sum ref^2
  double dot = 0.0;        // sum ref * got
};

struct StatisticsKernels {
  const char* name;

  // cos(a, b) over `dim` numbers, summed in double; 0 where one of them is zero.
  double (*cosine)(const float* a, const float* b, int64_t dim);

  ErrorSums (*merge_errors)(const MergeRows& merge, int64_t num_rows, int64_t dim);

  // weight[i] = exp(lse_external[i]) / (exp(lse_external[i]) + exp(lse_internal[i])), exact when
  // one side is -inf; not both.
  void (*external_weights)(const float* lse_external, const float* lse_internal, int64_t count,
                           float* weight);

  // 1 / |x|_2, so that x times it has unit length; finite for a zero vector.
  float (*unit_scale)(Element element, const void* x, int64_t dim);

  // |a / |a| - b * b_scale|_2, and that difference added to `difference` [dim]; NaN, and nothing
  // added, where a holds a NaN. b_scale: unit_scale of b.
  double (*unit_gap)(Element element, const void* a, const void* b, float b_scale, int64_t dim,
                     float* difference);

  // log(sum(exp(x))) over `count` numbers.
  double (*log_sum_exp)(Element element, const void* x, int64_t count);

  // KL(p || q) in nats of p = exp(first - lse_first), q = exp(now - lse_now) over `count` numbers;
  // what p gives no probability counts nothing.
  double (*divergence)(Element element, const void* first, double lse_first, const void* now,
                       double lse_now, int64_t count);
};

extern const StatisticsKernels kStatisticsKernelsBaseline;
extern const StatisticsKernels kStatisticsKernelsAvx2;
extern const StatisticsKernels kStatisticsKernelsAvx512;

// The variants this machine can run.
inline const LoopVariants<StatisticsKernels>& available_statistics_kernels() {
  static const LoopVariants<StatisticsKernels> loops(BLOCKSCOPE_VARIANTS_OF(kStatisticsKernels));
  return loops;
}

inline const StatisticsKernels& statistics_kernels() {
  return *available_statistics_kernels().variants[0];
}

}  // namespace blockscope
