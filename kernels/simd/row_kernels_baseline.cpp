// Row kernels for the default instruction set (SSE2 on x86-64); flags in CMakeLists.txt.
#include "kernels/simd/row_kernels_impl.h"

namespace blockscope {

const RowKernels kRowKernelsBaseline = make_row_kernels("baseline");

}  // namespace blockscope
