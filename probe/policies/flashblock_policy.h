// FlashBlock (arXiv 2602.05305, section 4.2) reuses the external pair of an earlier step while few
// tokens change.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "decode_record/schema/reuse_rule.h"
#include "probe/policies/attention_policy.h"

namespace blockscope {

struct FlashBlockOptions {
  int64_t num_layers = 0;
  int64_t num_heads = 0;
  ReuseRule rule;
  std::vector<std::vector<bool>> reuse;  // [num_layers][num_heads]; empty: every head may reuse
};

/// A pass that reuses keeps the cached pair; one that reads the prefix replaces it.
std::unique_ptr<AttentionPolicy> make_flashblock_policy(FlashBlockOptions options);

}  // namespace blockscope
