// Chooses the softmax loops at run time by the instruction sets of the processor.
#include "analysis/math/softmax_loops.h"

#include "kernels/simd/loop_variants.h"

namespace blockscope {
namespace {

const LoopVariants<SoftmaxLoops>& softmax_loops() {
  static const LoopVariants<SoftmaxLoops> loops(BLOCKSCOPE_VARIANTS_OF(kSoftmaxLoops));
  return loops;
}

}  // namespace

const SoftmaxLoops* const* available_softmax_loops(size_t* count) {
  *count = softmax_loops().count;
  return softmax_loops().variants.data();
}

const SoftmaxLoops& best_softmax_loops() { return *softmax_loops().variants[0]; }

}  // namespace blockscope
