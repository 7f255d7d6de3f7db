// Chooses the statistics kernels at run time from what the processor offers.
#include "kernels/simd/statistics_kernels.h"

#include "kernels/simd/instruction_set.h"

namespace blockscope {

const StatisticsKernels& statistics_kernels() {
#if defined(__x86_64__)
  if (has_avx512()) return kStatisticsKernelsAvx512;
  if (has_avx2()) return kStatisticsKernelsAvx2;
#endif
  return kStatisticsKernelsBaseline;
}

}  // namespace blockscope
