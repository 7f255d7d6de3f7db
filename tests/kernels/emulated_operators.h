// Included by the compiler before a test of ops.h's operators (-include): the names that the test
// calls then mean the device's operators, executed by the emulator. So GPU kernels must pass the
// CPU's tests.
#pragma once

#include <algorithm>
#include <cmath>

#include "kernels/attention_device.h"
#include "kernels/device/emulator.h"

namespace blockscope::testing {

// Workspace starts as NaN: nothing may be expected of fresh memory.
inline void launch_poisoned_split(const SplitCall& call, void* stream) {
  std::fill_n(call.states, state_floats(call), NAN);
  emulated::launch_split_attention(call, stream);
}

inline const DeviceQueue& emulator() {
  static const DeviceQueue queue{{.split_attention = launch_poisoned_split},
                                 [](const auto& call) { call(nullptr); }};
  return queue;
}

#if defined(BLOCKSCOPE_EMULATED_OPERATORS)
template <class... Arguments>
SplitAttention split_attention(const Arguments&... arguments) {
  return split_attention_on(emulator(), arguments...);
}
template <class... Arguments>
ReuseAttention reuse_attention(const Arguments&... arguments) {
  return reuse_attention_on(emulator(), arguments...);
}
#endif

}  // namespace blockscope::testing
