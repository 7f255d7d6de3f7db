// WINO's two selection rules, wide in and narrow out: a step fills many positions, and takes back
// those of earlier steps that a second look, through shadow positions that do not see the token
// itself, finds unlikely. Source: WINO, arXiv 2507.18578; Feng-Hong/WINO-DLLM
// `LLaDA/decoding.py:decoding_wino`. The pass over shadow positions: shadow_block.h.
#pragma once

#include <cstdint>
#include <vector>

namespace blockscope {

/// What a block's first step takes for the number of positions that the step before it filled.
inline constexpr int64_t kWinoFirstAccepted = 30;

/// What a step remembers of the step before it in the same block.
class WinoMemory {
 public:
  /// How many positions the step before one of `block` filled.
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

/// Masked positions with `confidence` > `threshold`, of these the most confident
/// min(max(int(0.7 masks), 5), 20); without any, the most confident masked one. [B] each;
/// ascending; ties to the lower position.
std::vector<int64_t> wino_wide_in(const std::vector<double>& confidence,
                                  const std::vector<bool>& masked, double threshold);

/// Positions to mask again, ascending: those that held a token before this step (`decided`) and
/// whose shadow gives that token a probability `shadow_confidence` < `threshold_back`; where they
/// are `last_accepted` or more, the last_accepted - 1 least likely ones. None when the step fills
/// fewer than two (`accepted`). `last_accepted`: how many the step before this one filled.
std::vector<int64_t> wino_narrow_out(const std::vector<double>& shadow_confidence,
                                     const std::vector<bool>& decided, double threshold_back,
                                     int64_t accepted, int64_t last_accepted);

}  // namespace blockscope
