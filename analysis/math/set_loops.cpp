// Chooses the set loops at run time by the instruction sets of the processor.
#include "analysis/math/set_loops.h"

#include "kernels/simd/loop_variants.h"

namespace blockscope {
namespace {

const LoopVariants<SetLoops>& set_loops() {
  static const LoopVariants<SetLoops> loops(BLOCKSCOPE_VARIANTS_OF(kSetLoops));
  return loops;
}

}  // namespace

const SetLoops* const* available_set_loops(size_t* count) {
  *count = set_loops().count;
  return set_loops().variants.data();
}

const SetLoops& best_set_loops() { return *set_loops().variants[0]; }

}  // namespace blockscope
