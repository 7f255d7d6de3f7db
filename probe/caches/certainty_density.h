// Certainty density of d2Cache (arXiv 2509.23094, section 3.1; `src/utils/common.py:
// certainty_density`): how many of the positions around one are known, by a Gaussian. The cache
// ranks masks by it, and a strategy's option density_sigma multiplies its scores by it.
#pragma once

#include <cstdint>
#include <vector>

namespace blockscope {

/// Which part of an answer is asked for.
struct AnswerRange {
  int64_t begin = 0;  // index in the answer of the first position, may be negative
  int64_t count = 0;
};

/// density[i] = sum_j known[j] exp(-(i - j)^2 / (2 sigma^2)) / sum of the whole kernel, over an
/// answer of L = known.size() positions, for the positions of `range`; 1 for those outside the
/// answer. What is left of the answer counts as known; what is right of it counts as its last
/// position does. sigma > 0, in positions; the kernel reaches 3 L on each side, as released.
/// Computed in float64 (the released code: by FFT in float32).
std::vector<float> certainty_density(const std::vector<bool>& known, double sigma,
                                     const AnswerRange& range);

}  // namespace blockscope
