// Row kernels for AVX-512; flags in CMakeLists.txt.
#include "kernels/simd/row_kernels_impl.h"

namespace blockscope {

const RowKernels kRowKernelsAvx512 = make_row_kernels("avx512");

}  // namespace blockscope
