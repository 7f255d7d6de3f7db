// split_attention on a device: checks, outputs and workspace; `launch` gets calls that only need to
// be handed to the device's kernels. The device is that of q.
#pragma once

#include <functional>

#include "kernels/ops.h"
#include "kernels/split_attention_launch.h"

namespace blockscope {

using LaunchSplit = std::function<void(const SplitCall&)>;

// ops.h's split_attention. `ext_len` stays on the CPU.
SplitAttention split_attention_on(const LaunchSplit& launch, const at::Tensor& q,
                                  const at::Tensor& k_ext, const at::Tensor& v_ext,
                                  const at::Tensor& ext_len, const at::Tensor& k_in,
                                  const at::Tensor& v_in, double scale);

}  // namespace blockscope
