// One of the two floors: k external keys drawn without repetition. Like MAGE, it keeps one set per
// block, layer and KV head for all steps of the block. The draw depends only on seed, prompt,
// block, layer and KV head, not on the batch or on resuming.
#pragma once

#include <cstdint>
#include <memory>

#include "probe/policies/selection_policy.h"

namespace blockscope {

std::unique_ptr<AttentionPolicy> make_random_policy(const SelectionOptions& options, uint64_t seed);

}  // namespace blockscope
