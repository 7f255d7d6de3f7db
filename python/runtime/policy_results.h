// Checks what policies of Python return.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <vector>

#include "probe/policies/attention_policy.h"

namespace blockscope::python {

/// Positions of the prefix as [K, k] int32, in range and distinct; -1 pads. `external`: the keys of
/// one sequence, [1, K, N, D] or more of them; `length`: N; `most`: the largest k. Throws Error.
at::Tensor positions_from(nanobind::handle given, const char* what, const ExternalKeys& external,
                          int64_t length, int64_t most);

/// The result of attend(), an object with attributes or a dict, for one sequence. Throws Error,
/// also for an unknown name in a dict, and for a residual unless the policy keeps one.
AttentionParts parts_from(nanobind::object result, const AttentionInput& input,
                          const ExternalKeys& external, int64_t most, bool keeps_residual);

/// The parts of the sequences, [1, ...] each, as parts of the batch.
AttentionParts joined_parts(const std::vector<AttentionParts>& all);

}  // namespace blockscope::python
