// The inner loops of a softmax over many keys. As in row_products.h, they are compiled once per
// instruction set and include no library header.
#pragma once

#include <stddef.h>

namespace blockscope {

struct SoftmaxLoops {
  const char* instruction_set;

  /// The largest score times `scale`; NaN for a NaN score; -inf without a score.
  float (*largest)(const float* scores, size_t count, float scale);
  /// Replaces the scores by exp(score * scale - largest), 0 where that is below 1e-38, and returns
  /// their sum.
  double (*exponentials)(float* scores, size_t count, float scale, float largest);
  void (*multiply)(float* values, size_t count, float factor);
};

extern const SoftmaxLoops kSoftmaxLoopsBaseline;
extern const SoftmaxLoops kSoftmaxLoopsAvx2;
extern const SoftmaxLoops kSoftmaxLoopsAvx512;

/// The fastest variant that this processor can run.
const SoftmaxLoops& best_softmax_loops();

/// The variants that this processor can run, fastest first. `count`: their number, at least one.
const SoftmaxLoops* const* available_softmax_loops(size_t* count);

}  // namespace blockscope
