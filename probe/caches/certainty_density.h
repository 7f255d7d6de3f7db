// Certainty density of d2Cache (arXiv 2509.23094, section 3.1; `src/utils/common.py:
// certainty_density`): the share of known positions around a position, weighted by a Gaussian. The
// cache ranks masks by it. The strategy option density_sigma multiplies scores by it.
#pragma once

#include <cstdint>
#include <vector>

namespace blockscope {

/// A part of an answer.
struct AnswerRange {
  int64_t begin = 0;  // index of the first position in the answer, may be negative
  int64_t count = 0;
};

/// density[i] = sum_j known[j] exp(-(i - j)^2 / (2 sigma^2)) / sum of the whole kernel, over an
/// answer of L = known.size() positions, for the positions of `range`; 1 for positions outside the
/// answer. Positions left of the answer count as known; positions right of it count like the last
/// one of the answer. sigma > 0, in positions. As in the released code, the kernel reaches 3 L on
/// each side. Computed in float64 (the released code uses an FFT in float32).
std::vector<float> certainty_density(const std::vector<bool>& known, double sigma,
                                     const AnswerRange& range);

}  // namespace blockscope
