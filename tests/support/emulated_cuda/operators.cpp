// The operators that can't be built from the CPU's: memory, copies, and operators that need a
// value.
#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_local_scalar_dense_cpu_dispatch.h>
#include <torch/library.h>

#include <optional>

#include "tests/support/emulated_cuda/host_alias.h"
#include "tests/support/emulated_cuda/streams.h"

namespace blockscope::emulated_cuda {
namespace {

using at::Tensor;

at::ScalarType type_or_default(std::optional<at::ScalarType> dtype) {
  return dtype.value_or(c10::get_default_dtype_as_scalartype());
}

void check_options(std::optional<at::Layout> layout, std::optional<at::Device> device,
                   std::optional<bool> pin_memory) {
  TORCH_CHECK(layout.value_or(at::kStrided) == at::kStrided, "emulated CUDA: only strided tensors");
  TORCH_CHECK(!device || device->index() <= 0, "CUDA error: invalid device ordinal");
  TORCH_CHECK(!pin_memory.value_or(false), "Only dense CPU tensors can be pinned");
}

Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype,
             std::optional<at::Layout> layout, std::optional<at::Device> device,
             std::optional<bool> pin_memory, std::optional<at::MemoryFormat> memory_format) {
  check_options(layout, device, pin_memory);
  return at::detail::empty_generic(size, device_allocator(),
                                   c10::DispatchKeySet(c10::DispatchKey::CUDA),
                                   type_or_default(dtype), memory_format);
}

Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride,
                     std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                     std::optional<at::Device> device, std::optional<bool> pin_memory) {
  check_options(layout, device, pin_memory);
  return empty_on_device(size, stride, type_or_default(dtype));
}

Tensor& copy(Tensor& self, const Tensor& source, bool non_blocking) {
  copy_on_stream(self, source, non_blocking);
  return self;
}

const Tensor& resize(const Tensor& self, at::IntArrayRef size,
                     std::optional<at::MemoryFormat> memory_format) {
  const std::scoped_lock lock(device_mutex());
  TORCH_CHECK(!memory_format || *memory_format == at::MemoryFormat::Contiguous,
              "emulated CUDA: resize_ to another memory format");
  resize_on_device(self, size);
  return self;
}

at::Scalar local_scalar_dense(const Tensor& self) {
  const std::scoped_lock lock(device_mutex());
  host_wait(current_stream_id(), "item");
  return at::cpu::_local_scalar_dense(HostAliases().of(self));
}

Tensor& set_storage(Tensor& self, at::Storage source, int64_t offset, at::IntArrayRef size,
                    at::IntArrayRef stride) {
  c10::TensorImpl* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(source));
  impl->set_storage_offset(offset);
  if (stride.data() == nullptr) {
    impl->set_sizes_contiguous(size);
  } else {
    impl->set_sizes_and_strides(size, stride);
  }
  TORCH_CHECK(
      at::detail::computeStorageNbytes(self.sizes(), self.strides(), self.itemsize(),
                                       static_cast<size_t>(offset)) <= self.storage().nbytes(),
      "setStorage: sizes ", self.sizes(), " are out of bounds for storage of size ",
      self.storage().nbytes());
  return self;
}

Tensor& set_tensor(Tensor& self, const Tensor& source) {
  return set_storage(self, source.storage(), source.storage_offset(), source.sizes(),
                     source.strides());
}

void record_stream(Tensor& self, c10::Stream stream) {
  record_block_stream(self.storage().data_ptr(), stream.id());
}

}  // namespace
}  // namespace blockscope::emulated_cuda

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  using namespace blockscope::emulated_cuda;
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("copy_", &copy);
  m.impl("resize_", &resize);
  m.impl("_local_scalar_dense", &local_scalar_dense);
  m.impl("set_.source_Storage_storage_offset", &set_storage);
  m.impl("set_.source_Tensor", &set_tensor);
  m.impl("record_stream", &record_stream);
}
