// Chooses the set loops at run time from what the processor offers.
#include "analysis/math/set_loops.h"

#include "analysis/math/loop_variants.h"

namespace blockscope {
namespace {

const LoopVariants<SetLoops>& set_loops() {
#if defined(__x86_64__)
  static const LoopVariants<SetLoops> loops(&kSetLoopsAvx512, &kSetLoopsAvx2, kSetLoopsBaseline);
#else
  static const LoopVariants<SetLoops> loops(nullptr, nullptr, kSetLoopsBaseline);
#endif
  return loops;
}

}  // namespace

const SetLoops* const* available_set_loops(size_t* count) {
  *count = set_loops().count;
  return set_loops().variants.data();
}

const SetLoops& best_set_loops() { return *set_loops().variants[0]; }

}  // namespace blockscope
