// The other floor: only the last k external keys (a sliding window without sinks).
#pragma once

#include <memory>

#include "probe/policies/selection_policy.h"

namespace blockscope {

std::unique_ptr<AttentionPolicy> make_recent_policy(const SelectionOptions& options);

}  // namespace blockscope
