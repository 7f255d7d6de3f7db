// Certainty density of d2Cache (arXiv 2509.23094, section 3.1; `src/utils/common.py:
// certainty_density`): how many of the positions around one are known, by a Gaussian.
#pragma once

#include <vector>

namespace blockscope {

/// density[i] = sum_j known[j] exp(-(i - j)^2 / (2 sigma^2)) / sum of the whole kernel, over an
/// answer of L = known.size() positions. What is left of it counts as known; what is right of it
/// counts as its last position does. sigma > 0, in positions; the kernel reaches 3 L on each side,
/// as released. Computed in float64.
std::vector<float> certainty_density(const std::vector<bool>& known, double sigma);

}  // namespace blockscope
