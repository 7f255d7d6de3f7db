// Row kernels for AVX2, FMA and F16C; flags in CMakeLists.txt.
#include "kernels/simd/row_kernels_impl.h"

namespace blockscope {

const RowKernels kRowKernelsAvx2 = make_row_kernels("avx2");

}  // namespace blockscope
