// The kernels of a DeviceQueue, executed by the emulator.
#pragma once

#include <algorithm>
#include <cmath>

#include "kernels/cuda/device_kernels.h"

namespace blockscope::testing {

// Workspace starts as NaN: nothing may be expected of fresh memory.
inline void launch_poisoned_split(const SplitCall& call, void* stream) {
  std::fill_n(call.states, state_floats(call), NAN);
  emulated::launch_split_attention(call, stream);
}

inline DeviceKernels emulated_launches() {
  return {.split_attention = launch_poisoned_split,
          .merge = emulated::launch_merge,
          .similarity = emulated::launch_similarity,
          .select = emulated::launch_select,
          .means = emulated::launch_means,
          .top_k = emulated::launch_top_k,
          .count_union = emulated::launch_union,
          .bounds = emulated::launch_bounds,
          .page_scores = emulated::launch_page_scores,
          .prefill = emulated::launch_prefill,
          .norm = emulated::launch_norm,
          .rotate = emulated::launch_rotate,
          .gate = emulated::launch_gate};
}

}  // namespace blockscope::testing
