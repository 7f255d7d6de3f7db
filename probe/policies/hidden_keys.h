// The intervention hide_keys: attention without some keys.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "probe/policies/intervention.h"

namespace blockscope {

/// Computes both parts of the heads again, in float32, without the hidden keys; under a sparse
/// policy, over the other keys of its set. A head that reused an earlier pair reads the prefix
/// again. False, with nothing changed, if no key is hidden. Throws UsageError for a token that the
/// sequence's prompt lacks.
bool hide_keys(const Intervention& given, InterventionSite& site, int64_t s,
               const at::Tensor& heads);

}  // namespace blockscope
