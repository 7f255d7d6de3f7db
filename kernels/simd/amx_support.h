// Checks whether the AMX kernels may run and multiply correctly. No CPU with AMX has run them yet,
// so every process checks them before it uses them.
#pragma once

#include "kernels/simd/linear_kernels.h"
#include "kernels/simd/tile_kernels.h"

namespace blockscope {

/// Whether this CPU multiplies bfloat16 in tiles of 16 rows of 64 bytes, and the system permits it.
/// The first call requests the permission for all threads.
bool may_use_amx();

/// Whether `kernels` (for bfloat16) give the exact product of small integers.
bool multiplies_exactly(const LinearKernels& kernels);

/// The same for scores, and for weighted sums with weights of more than 8 bits.
bool multiplies_exactly(const TileKernels& kernels);

}  // namespace blockscope
