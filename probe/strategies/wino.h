// WINO's two selection rules, wide in and narrow out. A step fills many positions. It also takes
// back tokens of earlier steps that a second look finds unlikely. The second look uses shadow
// positions, which do not see the token itself (shadow_block.h). Source: WINO, arXiv 2507.18578;
// Feng-Hong/WINO-DLLM `LLaDA/decoding.py:decoding_wino`.
#pragma once

#include <cstdint>
#include <vector>

namespace blockscope {

/// At a block's first step, this replaces the number of positions that the step before filled.
inline constexpr int64_t kWinoFirstAccepted = 30;

/// What a step remembers of the previous step in the same block.
class WinoMemory {
 public:
  /// How many positions the previous step of `block` filled.
  int64_t last_accepted(int64_t block) const {
    return block == block_ ? last_accepted_ : kWinoFirstAccepted;
  }
  void update(int64_t block, int64_t accepted) {
    block_ = block;
    last_accepted_ = accepted;
  }

 private:
  int64_t block_ = -1;
  int64_t last_accepted_ = kWinoFirstAccepted;
};

/// Masked positions with `confidence` > `threshold`, but at most the min(max(int(0.7 masks), 5),
/// 20) most confident ones. If there are none, the most confident masked position. Inputs are [B];
/// the result is ascending; ties go to the lower position.
std::vector<int64_t> wino_wide_in(const std::vector<double>& confidence,
                                  const std::vector<bool>& masked, double threshold);

/// Positions to mask again, ascending: those that held a token before this step (`decided`) and
/// whose shadow gives that token a probability `shadow_confidence` < `threshold_back`. If there are
/// `last_accepted` or more, only the last_accepted - 1 least likely ones. None if this step fills
/// fewer than two positions (`accepted`). `last_accepted`: how many the previous step filled.
std::vector<int64_t> wino_narrow_out(const std::vector<double>& shadow_confidence,
                                     const std::vector<bool>& decided, double threshold_back,
                                     int64_t accepted, int64_t last_accepted);

}  // namespace blockscope
