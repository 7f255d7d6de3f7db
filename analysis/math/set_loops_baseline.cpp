// Set loops for every processor; flags in CMakeLists.txt.
#include "analysis/math/set_loops_impl.h"

namespace blockscope {

const SetLoops kSetLoopsBaseline = make_set_loops("baseline");

}  // namespace blockscope
