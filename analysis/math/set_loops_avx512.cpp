// Set loops for AVX-512; flags in CMakeLists.txt.
#include "analysis/math/set_loops_impl.h"

namespace blockscope {

const SetLoops kSetLoopsAvx512 = make_set_loops("avx512");

}  // namespace blockscope
