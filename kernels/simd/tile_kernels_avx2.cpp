// Tile kernels for AVX2, FMA and F16C; flags in CMakeLists.txt.
#include "kernels/simd/tile_kernels_impl.h"

namespace blockscope {

const TileKernels kTileKernelsAvx2 = make_tile_kernels("avx2");

}  // namespace blockscope
