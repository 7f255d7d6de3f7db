// The operators of row_ops.h on a device: checks, outputs and calls. Arguments, results and errors
// are those of row_ops.h.
#pragma once

#include "kernels/cuda/device_kernels.h"
#include "kernels/row_ops.h"

namespace blockscope {

at::Tensor rms_norm_rows_on(const DeviceQueue& queue, const at::Tensor& x, const at::Tensor& weight,
                            double eps, bool weight_first);
SumAndNorm add_rms_norm_rows_on(const DeviceQueue& queue, const at::Tensor& x, const at::Tensor& y,
                                const at::Tensor& weight, double eps, bool weight_first);
/// One launch for two tensors of one head_dim.
std::vector<at::Tensor> norm_rotate_rows_on(const DeviceQueue& queue,
                                            const std::vector<HeadsToRotate>& heads,
                                            const at::Tensor& cos, const at::Tensor& sin);
at::Tensor silu_multiply_on(const DeviceQueue& queue, const at::Tensor& gate, const at::Tensor& up);

}  // namespace blockscope
