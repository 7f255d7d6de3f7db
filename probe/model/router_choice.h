// What observers learn of a mixture of experts, apart from the layer that holds the weights.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

namespace blockscope {

/// What a layer's router decided, per_token experts a row.
struct RouterChoice {
  at::Tensor expert;  // [..., per_token] int64, by falling score
  at::Tensor weight;  // [..., per_token] float32, that its expert's output is multiplied by
};
using RouterListener = std::function<void(const RouterChoice&)>;

}  // namespace blockscope
