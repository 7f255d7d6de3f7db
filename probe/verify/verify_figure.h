// The pictures of verify: accuracy and KL against the saving (the shape of FlashBlock Table 4), and
// attention time and keys read per step against context length (Fig. 3).
#pragma once

#include <array>
#include <vector>

#include "analysis/figures/gnuplot.h"
#include "probe/verify/verify_result.h"

namespace blockscope {

/// Names of the figures that verify_figures may return.
inline constexpr std::array<const char*, 2> kVerifyFigures{"verify_tradeoff", "verify_context"};

/// What can be drawn of this result. Without a sweep the first has one point of the policy (and one
/// of a pair's reference); the second needs steps at two context lengths at least and is left out
/// otherwise.
std::vector<Figure> verify_figures(const VerifyResult& result, int64_t block_length);

}  // namespace blockscope
