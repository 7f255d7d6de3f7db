// How often a recorded run reused attention over the prefix.
#pragma once

#include <cstdint>
#include <string>

namespace blockscope {

struct MeasuredReuse {
  double steps = 0.0;  // denoising steps of a block, mean
  double share = 0.0;  // of steps, layers and heads that reused, by /attention/reused
};

/// Throws TraceError if the trace can't be read, has another block length, or has no
/// /attention/reused.
MeasuredReuse measured_reuse(const std::string& trace, int64_t block_length);

}  // namespace blockscope
