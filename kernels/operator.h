// What torch's dispatcher knows of an operator: its schema, its function and its Meta function. The
// file that implements the operator states the three once, in a TORCH_LIBRARY_FRAGMENT.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <optional>
#include <string>
#include <tuple>
#include <vector>

namespace blockscope {

/// torch.ops.blockscope.<name>, on CPU and CUDA: `function` looks at the device itself, and its
/// results never alias its arguments. `meta` computes shapes and dtypes alone, with symbolic sizes,
/// so that torch.compile and FakeTensor can trace calls. Both take the types of the schema, and
/// several results are a tuple.
template <class Function, class Meta>
void define_operator(torch::Library& library, const std::string& schema, Function function,
                     Meta meta) {
  // Inductor must keep strides: kernels read rows whose last dimension is contiguous.
  library.def(schema.c_str(), {at::Tag::pt2_compliant_tag, at::Tag::needs_exact_strides});
  const std::string name = schema.substr(0, schema.find('('));
  library.impl(name.c_str(), c10::DispatchKey::CPU, function);
  library.impl(name.c_str(), c10::DispatchKey::CUDA, function);
  library.impl(name.c_str(), c10::DispatchKey::Meta, meta);
}

using OptionalTensor = std::optional<at::Tensor>;

// Tensors of one device without data.
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
