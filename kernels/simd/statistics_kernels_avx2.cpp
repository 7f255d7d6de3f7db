// Statistics kernels for AVX2, FMA and F16C; flags in CMakeLists.txt.
#include "kernels/simd/statistics_kernels_impl.h"

namespace blockscope {

const StatisticsKernels kStatisticsKernelsAvx2 = make_statistics_kernels("avx2");

}  // namespace blockscope
