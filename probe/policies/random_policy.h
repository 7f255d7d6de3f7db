// The floor: k external keys drawn without repetition, one set per block, layer and KV head, kept
// over the block's steps as MAGE keeps its sets. The draw depends on (seed, prompt, block, layer,
// KV head) alone: a batch or a resumed run changes nothing.
#pragma once

#include <cstdint>
#include <memory>

#include "probe/policies/selection_policy.h"

namespace blockscope {

std::unique_ptr<AttentionPolicy> make_random_policy(const SelectionOptions& options, uint64_t seed);

}  // namespace blockscope
