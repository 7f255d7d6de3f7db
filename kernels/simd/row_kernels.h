// What a transformer does row by row between its products, compiled once per instruction set from
// row_kernels_impl.h and chosen at run time. No torch header, for the reason in tile_kernels.h.
// Arithmetic is float32; where the element is narrower, a result is rounded wherever a chain of
// operators that the kernel stands for would store it.
#pragma once

#include <cstdint>

#include "kernels/simd/element.h"
#include "kernels/simd/loop_variants.h"

namespace blockscope {

struct RowKernels {
  const char* name;

  // output = x / sqrt(mean(x^2) + eps) * weight over `dim` elements, all of one type. Narrow types:
  // rounded once behind the weight (weight_first), or before it and behind it.
  void (*rms_norm)(Element element, const void* x, const void* weight, int64_t dim, float eps,
                   bool weight_first, void* output);

  // Rotate-half RoPE of the first `turning` (even) of `dim` elements, the others are copied: output
  // [i] = x[i] cos[i] - x[i + half] sin[i], output[i + half] = x[i + half] cos[i + half] + x[i]
  // sin[i + half]. cos and sin are float32 (products and sum are not rounded before the end) or of
  // the element's type (each is rounded).
  void (*rotate)(Element element, const void* x, Element table, const void* cos, const void* sin,
                 int64_t turning, int64_t dim, void* output);

  // output = x, rounded once where `to` is narrower.
  void (*convert)(Element from, const void* x, int64_t count, Element to, void* output);

  // output = a + b.
  void (*add)(Element element, const void* a, const void* b, int64_t count, void* output);

  // output = silu(gate) * up, silu(x) = x / (1 + exp(-x)), rounded like the two operators.
  void (*silu_multiply)(Element element, const void* gate, const void* up, int64_t count,
                        void* output);

  // The lowest index of the largest of `count` numbers, and its softmax probability; NaN where one
  // of them is NaN or +infinity, or all are -infinity.
  void (*best)(Element element, const void* x, int64_t count, int64_t* index, float* probability);

  // Of the logit at `index` among `count`: how many are larger, its softmax probability, and the
  // entropy of all in nats. -infinity is a probability of 0; both are NaN where `best` says so.
  void (*odds)(Element element, const void* x, int64_t count, int64_t index, int64_t* rank,
               float* probability, float* entropy);
};

extern const RowKernels kRowKernelsBaseline;
extern const RowKernels kRowKernelsAvx2;
extern const RowKernels kRowKernelsAvx512;

// The variants this machine can run.
inline const LoopVariants<RowKernels>& available_row_kernels() {
  static const LoopVariants<RowKernels> loops(BLOCKSCOPE_VARIANTS_OF(kRowKernels));
  return loops;
}

inline const RowKernels& best_row_kernels() { return *available_row_kernels().variants[0]; }

}  // namespace blockscope
