// The figures of verify: accuracy and KL against the saving (as FlashBlock, Table 4), and attention
// time and keys read per step against context length (Fig. 3).
#pragma once

#include <array>
#include <vector>

#include "analysis/figures/gnuplot.h"
#include "probe/verify/verify_result.h"

namespace blockscope {

/// Names of the figures that verify_figures may return.
inline constexpr std::array<const char*, 2> kVerifyFigures{"verify_tradeoff", "verify_context"};

/// The figures that this result allows. Without a sweep the first figure has one point for the
/// policy, and one for the reference of a pair. The second figure needs steps at two context
/// lengths at least.
std::vector<Figure> verify_figures(const VerifyResult& result, int64_t block_length);

}  // namespace blockscope
