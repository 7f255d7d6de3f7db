// FlashBlock's rule of reuse (arXiv 2602.05305, section 4.2), for calibration, analysis and
// recorders.
#pragma once

#include <cstdint>

namespace blockscope {

/// Whether a pass may reuse the external pair of an earlier step: iff it is a denoising step, not
/// its block's first, and M < tau. `step`: step in the block, from 1; 0 for prefill and commit.
/// `changed`: M, the block's inputs that differ from the step before.
constexpr bool reuses_external(std::int64_t step, std::int64_t changed, double tau) {
  return step > 1 && static_cast<double>(changed) < tau;
}

}  // namespace blockscope
