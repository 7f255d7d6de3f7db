// Tile kernels for AVX-512 (F, BW, DQ, VL); flags in CMakeLists.txt.
#include "kernels/simd/tile_kernels_impl.h"

namespace blockscope {

const TileKernels kTileKernelsAvx512 = make_tile_kernels("avx512");

}  // namespace blockscope
