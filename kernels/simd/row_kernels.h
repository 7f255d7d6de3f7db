// A transformer's operations on rows between its products, compiled once per instruction set from
// row_kernels_impl.h and chosen at run time. No torch header, for the reason in tile_kernels.h.
// Arithmetic is float32. For narrower elements, a result is rounded wherever the equivalent chain
// of operators would store it.
#pragma once

#include <cstdint>

#include "kernels/simd/element.h"
#include "kernels/simd/loop_variants.h"

namespace blockscope {

struct RowKernels {
  const char* name;

  // output = x / sqrt(mean(x^2) + eps) * weight over `dim` elements, all of one type. Narrow types
  // are rounded after the multiplication by the weight; without weight_first, also before it.
  void (*rms_norm)(Element element, const void* x, const void* weight, int64_t dim, float eps,
                   bool weight_first, void* output);

  // Rotate-half RoPE of the first `turning` (even) of `dim` elements; the others are copied.
  // output[i] = x[i] cos[i] - x[i + half] sin[i], output[i + half] = x[i + half] cos[i + half] +
  // x[i] sin[i + half]. cos and sin are float32 (only the final result is rounded) or have the
  // element's type (products and sums are rounded).
  void (*rotate)(Element element, const void* x, Element table, const void* cos, const void* sin,
                 int64_t turning, int64_t dim, void* output);

  // output = x, rounded once if `to` is narrower.
  void (*convert)(Element from, const void* x, int64_t count, Element to, void* output);

  // output = a + b.
  void (*add)(Element element, const void* a, const void* b, int64_t count, void* output);

  // output = silu(gate) * up, silu(x) = x / (1 + exp(-x)), rounded like the two operators.
  void (*silu_multiply)(Element element, const void* gate, const void* up, int64_t count,
                        void* output);

  // The lowest index of the largest of `count` numbers, and its softmax probability. The
  // probability is NaN if a number is NaN or +infinity, or if all are -infinity.
  void (*best)(Element element, const void* x, int64_t count, int64_t* index, float* probability);

  // For the logit at `index` among `count`: how many are larger, its softmax probability, and the
  // entropy of all in nats. -infinity gives probability 0. Probability and entropy are NaN in the
  // same cases as in `best`.
  void (*odds)(Element element, const void* x, int64_t count, int64_t index, int64_t* rank,
               float* probability, float* entropy);
};

extern const RowKernels kRowKernelsBaseline;
extern const RowKernels kRowKernelsAvx2;
extern const RowKernels kRowKernelsAvx512;

// The variants that this machine can run.
inline const LoopVariants<RowKernels>& available_row_kernels() {
  static const LoopVariants<RowKernels> loops(BLOCKSCOPE_VARIANTS_OF(kRowKernels));
  return loops;
}

inline const RowKernels& best_row_kernels() { return *available_row_kernels().variants[0]; }

}  // namespace blockscope
