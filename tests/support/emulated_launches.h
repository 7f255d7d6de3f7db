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
#define BLOCKSCOPE_KERNEL(name, Call) .name = emulated::launch_##name,
  DeviceKernels kernels{BLOCKSCOPE_LAUNCHES(BLOCKSCOPE_KERNEL)};
#undef BLOCKSCOPE_KERNEL
  kernels.split_attention = launch_poisoned_split;
  return kernels;
}

}  // namespace blockscope::testing
