// What policies of Python get in their calls, apart from tensors.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>

#include "probe/policies/pass_context.h"

namespace blockscope::python {

/// `step`: facts about one sequence at one pass.
struct PolicyStep {
  SequencePass pass;
  int64_t slot = 0;
  double scale = 0.0;
  nanobind::dict memory;  // the policy's own, as long as the sequence lives
};

/// `external`: the keys that attend() may read. Tensors of torch.
struct PolicyKeys {
  nanobind::object key, value, length;
};

void bind_policy_step(nanobind::module_& module);

}  // namespace blockscope::python
