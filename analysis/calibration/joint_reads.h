// Which earlier step's pair each head holds at each step of a continuous trace, under a provisional
// mask: from /summary/step_pair alone. The sequences of one pass are one batch, whose mean decides,
// as in FlashBlock's released video code (video/inference.py:236-301).
#pragma once

#include <cstdint>
#include <vector>

#include "analysis/calibration/calibration_sums.h"

namespace blockscope {

class JointReads {
 public:
  JointReads() = default;
  JointReads(const TraceReader& trace, const ProvisionalMask& mask);
  /// The step that the head read last before this row; 0: unknown, after a gap, or at step 1.
  std::int32_t step_of(std::int64_t row, std::size_t layer, std::size_t head) const {
    const std::size_t at = static_cast<std::size_t>(row) * cells_ + layer * heads_ + head;
    return at < steps_.size() ? steps_[at] : 0;
  }

 private:
  std::size_t heads_ = 0, cells_ = 0;  // cells_: layers * heads
  std::vector<std::int32_t> steps_;    // [row, layer, head]
};

}  // namespace blockscope
