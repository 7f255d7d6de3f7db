// Registers an operator with torch's dispatcher: its schema, its function and its Meta function.
// The file that implements the operator defines the three once, in a TORCH_LIBRARY_FRAGMENT.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <optional>
#include <string>
#include <tuple>
#include <vector>

namespace blockscope {

/// Defines torch.ops.blockscope.<name> for CPU and CUDA. `function` handles the device itself, and
/// its results never alias its arguments. `meta` computes only shapes and dtypes, with symbolic
/// sizes, so torch.compile and FakeTensor can trace calls. Both take the types of the schema and
/// return several results as a tuple.
template <class Function, class Meta>
void define_operator(torch::Library& library, const std::string& schema, Function function,
                     Meta meta) {
  // Inductor must keep strides, because kernels need a contiguous last dimension.
  library.def(schema.c_str(), {at::Tag::pt2_compliant_tag, at::Tag::needs_exact_strides});
  const std::string name = schema.substr(0, schema.find('('));
  library.impl(name.c_str(), c10::DispatchKey::CPU, function);
  library.impl(name.c_str(), c10::DispatchKey::CUDA, function);
  library.impl(name.c_str(), c10::DispatchKey::Meta, meta);
}

using OptionalTensor = std::optional<at::Tensor>;

// Tensors without data, on the device of `like` or `x`.
namespace meta {

using Shape = std::vector<c10::SymInt>;

at::Tensor empty(const at::Tensor& like, const Shape& shape, at::ScalarType dtype);
at::Tensor same(const at::Tensor& x);        // shape and dtype of x
at::Tensor floats(const at::Tensor& x);      // shape of x, float32
at::Tensor float_rows(const at::Tensor& x);  // [...] float32 of x [..., D]

using Sides = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;
using SourcedSides =
    std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;
Sides sides(const at::Tensor& q);  // the members of SplitAttention (ops.h)
SourcedSides sourced_sides(const at::Tensor& q, const at::Tensor& k_ext);  // of SourcedAttention

}  // namespace meta
}  // namespace blockscope
