// Whether the kernels of AMX may run, and whether they multiply what they should: no CPU with AMX
// has run them yet, so every process proves them before it uses them.
#pragma once

#include "kernels/simd/linear_kernels.h"
#include "kernels/simd/tile_kernels.h"

namespace blockscope {

/// Whether this CPU multiplies bfloat16 in tiles of 16 rows of 64 bytes and the system lets this
/// process; the first call asks for it, for all threads.
bool may_use_amx();

/// Whether `kernels`, of bfloat16, give the exact product of small integers.
bool multiplies_exactly(const LinearKernels& kernels);

/// The same of scores and of weighted sums, whose weights need more than 8 bits.
bool multiplies_exactly(const TileKernels& kernels);

}  // namespace blockscope
