// Tensors between LibTorch and Python's torch. Both sides share the memory (DLPack).
#pragma once

#include <ATen/core/Tensor.h>
#include <nanobind/nanobind.h>

#include <string>

namespace blockscope::python {

/// A torch.Tensor with the memory of `tensor`. Call it with Python's lock.
nanobind::object to_python(const at::Tensor& tensor);

/// The memory of a torch.Tensor, or of what torch.as_tensor accepts. Throws Error: "`what`:
/// expected a tensor, got list". Call it with Python's lock.
at::Tensor from_python(nanobind::handle value, const std::string& what);

}  // namespace blockscope::python
