// Where tensors are. Token ids, positions, lengths and masks are made on the host, where the
// decoder thinks; weights, keys and everything computed of them are on the model's device.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace blockscope {

/// A tensor of the host on `device`, without waiting for it; for the CPU, and a tensor that is
/// there, itself.
at::Tensor on_device(const at::Tensor& host, at::Device device);
/// Writes it over a tensor of the same shape and type that is on a device, without waiting either.
void copy_over(const at::Tensor& host, const at::Tensor& there);
/// [N] int64, to index tensors of `device` with.
at::Tensor index_on(const std::vector<int64_t>& index, at::Device device);

/// The tensor on the host, waiting for it; itself where it is.
at::Tensor on_host(const at::Tensor& tensor);
/// The same of several of one device, waiting once; undefined ones stay.
std::vector<at::Tensor> on_host(const std::vector<at::Tensor>& tensors);

}  // namespace blockscope
