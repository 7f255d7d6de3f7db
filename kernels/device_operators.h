// The operators of ops.h on a device other than the CPU. ops.h's functions look at the device of
// their first argument and call through this table, which the device's library fills when it is
// loaded: libblockscope_kernels_cuda.so for CUDA. Who stays on the CPU loads nothing of it.
#pragma once

#include "kernels/ops.h"

namespace blockscope {

struct DeviceOperators {
  SplitAttention (*split_attention)(const at::Tensor& q, const at::Tensor& k_ext,
                                    const at::Tensor& v_ext, const at::Tensor& ext_len,
                                    const at::Tensor& k_in, const at::Tensor& v_in,
                                    double scale) = nullptr;
  ReuseAttention (*reuse_attention)(const at::Tensor& q, const at::Tensor& k_ext,
                                    const at::Tensor& v_ext, const at::Tensor& ext_len,
                                    const at::Tensor& k_in, const at::Tensor& v_in,
                                    const at::Tensor& cached_external, const at::Tensor& cached_lse,
                                    const at::Tensor& reuse_mask, double scale) = nullptr;
};

void set_cuda_operators(const DeviceOperators& operators);

// Null where `tensor` is undefined or on the CPU. Throws c10::Error where its device has none.
const DeviceOperators* operators_of(const char* op, const at::Tensor& tensor);

}  // namespace blockscope
