// Reads every external key at every step: the reference of all other policies.
#pragma once

#include <memory>

#include "probe/policies/attention_policy.h"

namespace blockscope {

std::unique_ptr<AttentionPolicy> make_exact_policy();

/// What the policy computes at a layer.
AttentionParts exact_attention(const AttentionInput& input, const ExternalKeys& external);

}  // namespace blockscope
