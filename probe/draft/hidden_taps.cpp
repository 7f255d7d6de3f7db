#include "probe/draft/hidden_taps.h"

#include <ATen/ATen.h>

#include <utility>

namespace blockscope {

HiddenTaps::HiddenTaps(std::vector<int64_t> layers, int64_t num_layers)
    : layers_(std::move(layers)), num_layers_(num_layers), outputs_(layers_.size()) {}

void HiddenTaps::begin_pass() { outputs_.assign(layers_.size(), {}); }

void HiddenTaps::before_layer(int64_t layer, const at::Tensor& hidden) {
  for (size_t i = 0; i < layers_.size(); ++i) {
    if (layers_[i] + 1 == layer) outputs_[i] = hidden;
  }
}

at::Tensor HiddenTaps::side_by_side(const at::Tensor& last) const {
  std::vector<at::Tensor> all = outputs_;
  for (size_t i = 0; i < all.size(); ++i) {
    if (layers_[i] + 1 == num_layers_) all[i] = last;
  }
  return at::cat(all, -1);
}

}  // namespace blockscope
