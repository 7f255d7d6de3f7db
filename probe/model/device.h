// Copies between the host and a device. The decoder runs on the CPU and makes token ids, positions,
// lengths and masks there. Weights, keys and everything computed from them are on the model's
// device.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace blockscope {

/// Copies a host tensor to `device` without waiting. Returns the tensor itself if it is already on
/// `device`.
at::Tensor on_device(const at::Tensor& host, at::Device device);
/// The same for small values that many calls need, such as a block's rows. Nobody may write to the
/// result (kept_copy()).
at::Tensor kept_on(const at::Tensor& host, at::Device device);
/// Copies a host tensor into a device's tensor of the same shape and type, without waiting.
void copy_over(const at::Tensor& host, const at::Tensor& there);
/// [N] int64 on `device`, for indexing its tensors.
at::Tensor index_on(const std::vector<int64_t>& index, at::Device device);

/// Copies a tensor to the host and waits for it. Returns a host tensor itself.
at::Tensor on_host(const at::Tensor& tensor);
/// The same for several tensors of one device, waiting once; undefined tensors stay undefined.
std::vector<at::Tensor> on_host(const std::vector<at::Tensor>& tensors);

}  // namespace blockscope
