#include "tests/support/emulated_cuda/host_alias.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/TensorImpl.h>

#include <cstring>
#include <limits>
#include <memory>
#include <utility>

#include "tests/support/emulated_cuda/device_memory.h"
#include "tests/support/emulated_cuda/streams.h"

namespace blockscope::emulated_cuda {
namespace {

void release_block(void* context) {
  const std::scoped_lock lock(device_mutex());
  delete static_cast<std::shared_ptr<Block>*>(context);
}

at::Tensor view_of(c10::Storage storage, c10::DispatchKeySet keys, const at::Tensor& like) {
  at::Tensor made =
      at::detail::make_tensor<c10::TensorImpl>(std::move(storage), keys, like.dtype());
  made.unsafeGetTensorImpl()->set_storage_offset(like.storage_offset());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides());
  return made;
}

/// What a host that doesn't wait for a copy reads.
void poison_host(const at::Tensor& tensor) {
  if (tensor.is_contiguous()) {
    std::memset(tensor.mutable_data_ptr(), kPoison, tensor.nbytes());
  } else if (at::isFloatingType(tensor.scalar_type())) {
    tensor.fill_(std::numeric_limits<double>::quiet_NaN());
  } else {
    tensor.fill_(tensor.scalar_type() == at::kBool ? 1 : -1);
  }
}

void copy_to_host(const at::Tensor& to, const at::Tensor& from, bool non_blocking) {
  refuse_in_capture("a copy to the host");
  const int64_t stream = current_stream_id();
  const at::Tensor source = HostAliases().of(from);
  mutable_counters().bytes_to_host += static_cast<int64_t>(from.nbytes());
  enqueue(stream, [to, source] {
    const at::AutoDispatchBelowADInplaceOrView guard;
    to.copy_(source);
  });
  if (non_blocking && is_pinned(to.const_data_ptr())) {
    poison_host(to);
  } else {
    host_wait(stream, "copy to the host");
  }
}

void copy_to_device(const at::Tensor& to, const at::Tensor& from, bool non_blocking) {
  refuse_in_capture("a copy from the host");
  const int64_t stream = current_stream_id();
  const at::Tensor target = HostAliases().of(to);
  mutable_counters().bytes_to_device += static_cast<int64_t>(from.nbytes());
  // Pageable memory is read before the call returns; pinned memory when the stream comes to it.
  const bool late = non_blocking && is_pinned(from.const_data_ptr());
  const at::Tensor source = late ? from : from.clone();
  enqueue(stream, [target, source] {
    const at::AutoDispatchBelowADInplaceOrView guard;
    target.copy_(source);
  });
  if (!non_blocking) host_wait(stream, "copy to the device");
}

}  // namespace

at::Tensor HostAliases::of(const at::Tensor& device) {
  if (!device.defined()) return device;
  at::Tensor& alias = tensors_[device.unsafeGetTensorImpl()];
  if (alias.defined()) return alias;
  const c10::Storage& storage = device.storage();
  c10::Storage& shared = storages_[storage.unsafeGetStorageImpl()];
  if (!shared) {
    const std::shared_ptr<Block> block = block_of(storage);
    const c10::Device cpu(c10::kCPU);
    c10::DataPtr data(nullptr, cpu);
    if (block != nullptr) {
      data = {host_address(block->device), new std::shared_ptr<Block>(block), &release_block, cpu};
    }
    shared = c10::Storage(c10::Storage::use_byte_size_t(), storage.nbytes(), std::move(data),
                          /*allocator=*/nullptr, /*resizable=*/false);
  }
  alias = view_of(shared, c10::DispatchKeySet(c10::DispatchKey::CPU), device);
  if (device.unsafeGetTensorImpl()->is_wrapped_number()) {
    alias.unsafeGetTensorImpl()->set_wrapped_number(true);
  }
  return alias;
}

at::Tensor device_view(const at::Tensor& base, const at::Tensor& like) {
  at::Tensor made = at::detail::make_tensor<c10::TensorImpl>(
      c10::TensorImpl::VIEW, c10::Storage(base.storage()), base.key_set(), like.dtype());
  made.unsafeGetTensorImpl()->set_storage_offset(like.storage_offset());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides());
  return made;
}

at::Tensor empty_on_device(at::IntArrayRef size, at::IntArrayRef stride, at::ScalarType dtype) {
  return at::detail::empty_strided_generic(size, stride, device_allocator(),
                                           c10::DispatchKeySet(c10::DispatchKey::CUDA), dtype);
}

void resize_on_device(const at::Tensor& tensor, at::IntArrayRef size) {
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  if (tensor.sizes() == size) return;
  const size_t bytes = at::detail::computeStorageNbytesContiguous(
      size, tensor.itemsize(), static_cast<size_t>(tensor.storage_offset()));
  const c10::Storage& storage = tensor.storage();
  if (bytes > storage.nbytes()) {
    c10::DataPtr grown = device_allocator()->allocate(bytes);
    if (storage.nbytes() > 0) {
      device_allocator()->copy_data(grown.get(), storage.data(), storage.nbytes());
    }
    storage.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(grown));
    storage.unsafeGetStorageImpl()->set_nbytes(bytes);
  }
  impl->set_sizes_contiguous(size);
}

void copy_on_stream(const at::Tensor& to, const at::Tensor& from, bool non_blocking) {
  const std::scoped_lock lock(device_mutex());
  const at::AutoDispatchBelowADInplaceOrView guard;
  TORCH_CHECK(at::is_expandable_to(from.sizes(), to.sizes()), "The size of tensor a (", to.sizes(),
              ") must match the size of tensor b (", from.sizes(), ")");
  if (from.numel() == 0 || to.numel() == 0) return;
  if (!to.is_cuda()) return copy_to_host(to, from, non_blocking);
  if (!from.is_cuda()) return copy_to_device(to, from, non_blocking);
  ++mutable_counters().operators;
  HostAliases aliases;
  enqueue(current_stream_id(), [target = aliases.of(to), source = aliases.of(from)] {
    const at::AutoDispatchBelowADInplaceOrView inner;
    target.copy_(source);
  });
}

}  // namespace blockscope::emulated_cuda
