// Linear kernels of bfloat16 for AVX-512 with its bfloat16 products; flags in CMakeLists.txt.
#include "kernels/simd/linear_kernels_impl.h"

namespace blockscope {

const LinearKernels kLinearBFloat16Avx512 = make_linear_kernels<BFloat16>("avx512_bf16");

}  // namespace blockscope
