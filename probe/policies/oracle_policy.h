// The ceiling of all sparse policies: each step reads the k keys with the largest mean probability
// of that same step (MAGE, eq. 2 with exact scores). To know these keys it reads the whole prefix,
// so it saves nothing.
#pragma once

#include <memory>

#include "probe/policies/selection_policy.h"

namespace blockscope {

std::unique_ptr<AttentionPolicy> make_oracle_policy(const SelectionOptions& options);

}  // namespace blockscope
