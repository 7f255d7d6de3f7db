// A router's choice, as observers see it, without the layer that holds the weights.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

namespace blockscope {

/// A router's choice of per_token experts for each row.
struct RouterChoice {
  at::Tensor expert;  // [..., per_token] int64, by falling score
  at::Tensor weight;  // [..., per_token] float32, factors of the experts' outputs
};
using RouterListener = std::function<void(const RouterChoice&)>;

}  // namespace blockscope
