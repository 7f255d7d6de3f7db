// Chooses among inner loops that are compiled once per instruction set.
#pragma once

#include <array>
#include <cstddef>

#include "kernels/simd/instruction_set.h"

namespace blockscope {

/// The variants that this processor can run, fastest first; at least one.
template <typename Loops>
struct LoopVariants {
  std::array<const Loops*, 3> variants{};
  std::size_t count = 0;

  /// avx512 and avx2 may be null if they are not compiled for this architecture.
  LoopVariants(const Loops* avx512, const Loops* avx2, const Loops& baseline) {
    if (avx512 != nullptr && has_avx512()) variants.at(count++) = avx512;
    if (avx2 != nullptr && has_avx2()) variants.at(count++) = avx2;
    variants.at(count++) = &baseline;
  }
};

}  // namespace blockscope

// The arguments of LoopVariants: constants from cmake/instruction_sets.cmake.
#if defined(__x86_64__)
#define BLOCKSCOPE_VARIANTS_OF(constant) &constant##Avx512, &constant##Avx2, constant##Baseline
#else
#define BLOCKSCOPE_VARIANTS_OF(constant) nullptr, nullptr, constant##Baseline
#endif
