// Chooses the tile kernels at run time by the instruction sets of the processor.
#include "kernels/simd/tile_kernels.h"

#include <array>
#include <cstddef>

#include "kernels/simd/amx_support.h"
#include "kernels/simd/instruction_set.h"

namespace blockscope {
namespace {

struct Available {
  std::array<const TileKernels*, 5> variants{};
  int64_t count = 0;

  void add(const TileKernels& variant) {
    variants[static_cast<std::size_t>(count)] = &variant;
    ++count;
  }
};

Available detect() {
  Available available;
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (has_avx512_bf16() && may_use_amx() && multiplies_exactly(kTileKernelsAmx)) {
    available.add(kTileKernelsAmx);
  }
  if (has_avx512_bf16()) available.add(kTileKernelsAvx512Bf16);
  if (has_avx512()) available.add(kTileKernelsAvx512);
  if (has_avx2()) available.add(kTileKernelsAvx2);
#endif
  available.add(kTileKernelsBaseline);
  return available;
}

}  // namespace

const TileKernels* const* available_tile_kernels(int64_t* count) {
  static const Available available = detect();
  *count = available.count;
  return available.variants.data();
}

}  // namespace blockscope
