// Tile kernels for AVX-512 with BF16 products; flags in CMakeLists.txt.
#include "kernels/simd/tile_kernels_impl.h"

namespace blockscope {

const TileKernels kTileKernelsAvx512Bf16 = make_tile_kernels("avx512_bf16");

}  // namespace blockscope
