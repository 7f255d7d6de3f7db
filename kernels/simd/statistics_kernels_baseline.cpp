// Statistics kernels for any machine.
#include "kernels/simd/statistics_kernels_impl.h"

namespace blockscope {

const StatisticsKernels kStatisticsKernelsBaseline = make_statistics_kernels("baseline");

}  // namespace blockscope
