// split_attention and its kin on a device: checks, outputs and workspace; the queue gets calls that
// only need to be handed to kernels. The device is that of q. Arguments and results are those of
// ops.h; lengths, masks and `dense` stay on the CPU.
#pragma once

#include "kernels/cuda/device_kernels.h"
#include "kernels/ops.h"

namespace blockscope {

SplitAttention split_attention_on(const DeviceQueue& queue, const at::Tensor& q,
                                  const at::Tensor& k_ext, const at::Tensor& v_ext,
                                  const at::Tensor& ext_len, const at::Tensor& k_in,
                                  const at::Tensor& v_in, double scale);

ReuseAttention reuse_attention_on(const DeviceQueue& queue, const at::Tensor& q,
                                  const at::Tensor& k_ext, const at::Tensor& v_ext,
                                  const at::Tensor& ext_len, const at::Tensor& k_in,
                                  const at::Tensor& v_in, const at::Tensor& cached_external,
                                  const at::Tensor& cached_lse, const at::Tensor& reuse_mask,
                                  double scale);

// Positions are checked on the device: the call waits for what it says of them.
GatherAttention gather_attention_on(const DeviceQueue& queue, const at::Tensor& q,
                                    const at::Tensor& k_ext, const at::Tensor& v_ext,
                                    const at::Tensor& ext_len, const at::Tensor& index,
                                    const at::Tensor& k_in, const at::Tensor& v_in, double scale,
                                    const at::Tensor& dense = {}, const at::Tensor& residual = {},
                                    const at::Tensor& lse_residual = {});

PartialAttention unselected_attention_on(const DeviceQueue& queue, const at::Tensor& q,
                                         const at::Tensor& k_ext, const at::Tensor& v_ext,
                                         const at::Tensor& ext_len, const at::Tensor& index,
                                         double scale);

}  // namespace blockscope
