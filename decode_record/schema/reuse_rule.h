// FlashBlock's rule of reuse (arXiv 2602.05305, section 4.2), which calibration, analysis and
// recorders share.
#pragma once

#include <cstdint>

namespace blockscope {

/// Whether a pass may take its external pair from an earlier step: at a denoising step that is not
/// its block's first, iff M < tau. step: in the block, from 1; 0 for prefill and commit. changed:
/// M, inputs of the block that differ from the step before.
constexpr bool reuses_external(std::int64_t step, std::int64_t changed, double tau) {
  return step > 1 && static_cast<double>(changed) < tau;
}

}  // namespace blockscope
