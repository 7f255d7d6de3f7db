// The quota: how many tokens are due at a denoising step, for strategies with a schedule.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace blockscope {

enum class Quota {
  kEven,    // SDAR `generate.py:get_num_transfer_tokens`: from the block length
  kLinear,  // Dream `generation_utils.py:_sample`: a share of the masks that are left
  kCarry,   // Fast-dLLM's `_sample`, alg confidence_threshold: the next step gets unused quota
};

inline const std::vector<std::string> kQuotaWords{"even", "linear", "carry"};

/// block_length // steps, plus 1 for the first block_length % steps; `step` from 0.
int64_t even_quota(int64_t block_length, int64_t steps, int64_t step);

/// The sum of the even quotas up to this step, minus the number of positions `chosen` before,
/// including those whose token was [MASK].
int64_t carried_quota(int64_t block_length, int64_t chosen, int64_t steps, int64_t step);

/// int(masks * (1 - s / t)) in float32, where t and s are entries `step` and `step` + 1 of
/// linspace(1, 1e-3, steps + 1); all masks at the last step. It truncates, so a step's quota may be
/// 0.
int64_t linear_quota(int64_t masks, int64_t steps, int64_t step);

}  // namespace blockscope
