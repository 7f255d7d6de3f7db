// The tensors inside the arguments and results of an operator that is called boxed.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <optional>

namespace blockscope::emulated_cuda {

template <class Visit>
void for_each_tensor(const c10::IValue& value, const Visit& visit) {
  if (value.isTensor()) {
    visit(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& each : value.toTensorVector()) visit(each);
  } else if (value.isList()) {
    for (const c10::IValue& each : value.toListRef()) {
      if (each.isTensor()) visit(each.toTensor());
    }
  }
}

/// The value with every tensor replaced; tensors elsewhere stay.
template <class Replace>
c10::IValue map_tensors(const c10::IValue& value, const Replace& replace) {
  if (value.isTensor())
    return value.toTensor().defined() ? c10::IValue(replace(value.toTensor())) : value;
  if (value.isTensorList()) {
    c10::List<at::Tensor> made;
    for (const at::Tensor& each : value.toTensorVector()) made.push_back(replace(each));
    return made;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> made;
    for (const std::optional<at::Tensor>& each : value.toOptionalTensorVector()) {
      made.push_back(each && each->defined() ? std::optional(replace(*each)) : each);
    }
    return made;
  }
  return value;
}

}  // namespace blockscope::emulated_cuda
