// The kernels of a DeviceQueue, executed by the emulator.
#pragma once

#include <ATen/ops/arange.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>

#include "kernels/cuda/device_kernels.h"

namespace blockscope::testing {

// Workspace starts as NaN: nothing may be expected of fresh memory.
inline void launch_poisoned_split(const SplitCall& call, void* stream) {
  std::fill_n(call.states, state_floats(call), NAN);
  emulated::launch_split_attention(call, stream);
}

inline void launch_poisoned_spread(const SpreadCall& call, void* stream) {
  std::fill_n(call.states, spread_state_floats(call), NAN);
  const int64_t heads = int64_t{call.attention.sequences} * call.attention.kv_heads;
  std::fill_n(call.reached, heads * call.ranges, -1);
  emulated::launch_spread(call, stream);
}

inline DeviceKernels emulated_launches() {
#define BLOCKSCOPE_KERNEL(name, Call) .name = emulated::launch_##name,
  DeviceKernels kernels{BLOCKSCOPE_LAUNCHES(BLOCKSCOPE_KERNEL)};
#undef BLOCKSCOPE_KERNEL
  kernels.split_attention = launch_poisoned_split;
  kernels.spread = launch_poisoned_spread;
  return kernels;
}

// What torch's flash attention gives, by plain operators.
inline PrefixPair plain_prefix(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                               double scale) {
  const at::Tensor scores =
      at::matmul(q.to(at::kFloat), k.to(at::kFloat).transpose(2, 3)).mul(scale);
  const at::Tensor output = at::matmul(at::softmax(scores, 3), v.to(at::kFloat));
  return {output.to(q.scalar_type()), at::logsumexp(scores, {3})};
}

// What torch's grouped product gives, by plain operators that do not read `ends` on the host.
inline at::Tensor plain_grouped_product(const at::Tensor& rows, const at::Tensor& weights,
                                        const at::Tensor& ends) {
  const at::Tensor place = at::arange(rows.size(0), ends.options()).unsqueeze(1);
  at::Tensor made = at::zeros({rows.size(0), weights.size(1)}, rows.options());
  for (int64_t group = weights.size(0) - 1; group >= 0; --group) {
    made = at::where(place.lt(ends[group]), at::linear(rows, weights[group]), made);
  }
  return made;
}

}  // namespace blockscope::testing
