// Tile kernels for the default instruction set (SSE2 on x86-64); flags in CMakeLists.txt.
#include "kernels/simd/tile_kernels_impl.h"

namespace blockscope {

const TileKernels kTileKernelsBaseline = make_tile_kernels("baseline");

}  // namespace blockscope
