// Set loops for AVX2; flags in CMakeLists.txt.
#include "analysis/math/set_loops_impl.h"

namespace blockscope {

const SetLoops kSetLoopsAvx2 = make_set_loops("avx2");

}  // namespace blockscope
