// Tensors of the CPU over the bytes of the device's.
#pragma once

#include <ATen/core/Tensor.h>

#include <unordered_map>

namespace blockscope::emulated_cuda {

/// Makes the aliases of one call: tensors that share a storage share one among the aliases too, and
/// one tensor has one alias, so that checks for overlaps find what they would find. An alias keeps
/// the block, not the storage: the device may free and poison it while the alias lives.
class HostAliases {
 public:
  at::Tensor of(const at::Tensor& device);

 private:
  std::unordered_map<const c10::StorageImpl*, c10::Storage> storages_;
  std::unordered_map<const c10::TensorImpl*, at::Tensor> tensors_;
};

/// A tensor of the device over the storage of `base`, with sizes, strides, offset and dtype of
/// `like`.
at::Tensor device_view(const at::Tensor& base, const at::Tensor& like);

at::Tensor empty_on_device(at::IntArrayRef size, at::IntArrayRef stride, at::ScalarType dtype);

/// Makes a tensor contiguous with this size; its memory grows where it must, and keeps what it
/// held.
void resize_on_device(const at::Tensor& tensor, at::IntArrayRef size);

/// copy_ of two tensors, at least one of them on the device, on the current stream.
void copy_on_stream(const at::Tensor& to, const at::Tensor& from, bool non_blocking);

}  // namespace blockscope::emulated_cuda
