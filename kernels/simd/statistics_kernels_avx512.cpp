// Statistics kernels for AVX-512; flags in CMakeLists.txt.
#include "kernels/simd/statistics_kernels_impl.h"

namespace blockscope {

const StatisticsKernels kStatisticsKernelsAvx512 = make_statistics_kernels("avx512");

}  // namespace blockscope
