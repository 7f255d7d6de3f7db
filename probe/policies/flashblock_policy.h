// FlashBlock (arXiv 2602.05305, section 4.2) reuses the external pair of an earlier step while few
// tokens change.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "probe/policies/attention_policy.h"

namespace blockscope {

struct FlashBlockOptions {
  int64_t num_layers = 0;
  int64_t num_heads = 0;
  int64_t tau = 2;  // reuse iff M < tau, at a denoising step that is not its block's first
  std::vector<std::vector<bool>> reuse;  // [num_layers][num_heads]; empty: every head may reuse
};

/// Reusing keeps the cached pair; recomputing replaces it. M counts this step's changes only.
std::unique_ptr<AttentionPolicy> make_flashblock_policy(FlashBlockOptions options);

}  // namespace blockscope
