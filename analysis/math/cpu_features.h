// Which of the instruction sets that inner loops are compiled for this processor runs.
#pragma once

namespace blockscope {

bool has_avx2();    ///< AVX2 and FMA
bool has_avx512();  ///< F, BW, DQ and VL, on top of has_avx2()

}  // namespace blockscope
