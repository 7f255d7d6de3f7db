// The ceiling of every sparse policy: at each step the k keys with the largest mean probability at
// that very step (MAGE, eq. 2 with exact scores). It reads the whole prefix to know them, so it
// saves nothing.
#pragma once

#include <memory>

#include "probe/policies/selection_policy.h"

namespace blockscope {

std::unique_ptr<AttentionPolicy> make_oracle_policy(const SelectionOptions& options);

}  // namespace blockscope
