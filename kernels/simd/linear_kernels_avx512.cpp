// Linear kernels of float32 for AVX-512; flags in CMakeLists.txt.
#include "kernels/simd/linear_kernels_impl.h"

namespace blockscope {

const LinearKernels kLinearFloat32Avx512 = make_linear_kernels<Float32>("avx512");

}  // namespace blockscope
