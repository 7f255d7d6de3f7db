// What a recorder sums over rows of numbers between two steps, compiled once per instruction set
// from statistics_kernels_impl.h and chosen at run time. No torch header, for the reason in
// tile_kernels.h.
#pragma once

#include <cstdint>

#include "kernels/element.h"

namespace blockscope {

// One row of two merges with the same internal side: got = internal + source_weight * (source -
// internal) of a pair from an earlier step, ref = internal + external_weight * (external -
// internal) of this one (FlashBlock, arXiv 2602.05305, eq. 9); a weight is the external side's
// exp(lse) over both sides'.
struct MergeRow {
  const float* source;
  const float* external;
  const float* internal;
  float source_weight;
  float external_weight;
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

  void (*add_merge_error)(const MergeRow& row, int64_t dim, ErrorSums* total);

  // unit = x / |x|_2; a zero vector stays zero.
  void (*normalise)(Element element, const void* x, int64_t dim, float* unit);

  // |a - b|_2, and a - b added to `difference`.
  double (*distance)(const float* a, const float* b, int64_t dim, float* difference);

  // log(sum(exp(x))) over `count` numbers.
  double (*log_sum_exp)(Element element, const void* x, int64_t count);

  // KL(p || q) in nats of p = exp(first - lse_first), q = exp(now - lse_now) over `count` numbers;
  // what p gives no probability counts nothing.
  double (*divergence)(Element element, const void* first, double lse_first, const void* now,
                       double lse_now, int64_t count);
};

// The best variant for this machine.
const StatisticsKernels& statistics_kernels();

// One per instruction set; only statistics_kernels.cpp names them.
extern const StatisticsKernels kStatisticsKernelsBaseline;
extern const StatisticsKernels kStatisticsKernelsAvx2;
extern const StatisticsKernels kStatisticsKernelsAvx512;

}  // namespace blockscope
