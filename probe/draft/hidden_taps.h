// The hidden states of a target that its draft reads as context.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace blockscope {

class HiddenTaps {
 public:
  /// `layers`: the layers whose outputs are kept.
  HiddenTaps(std::vector<int64_t> layers, int64_t num_layers);

  void begin_pass();
  /// Call it from ForwardSeams::before_layer.
  void before_layer(int64_t layer, const at::Tensor& hidden);
  /// The kept outputs of the pass, concatenated to [S, T, layers * hidden_size]. `last`: the
  /// model's result, which serves as the last layer's output (after the final norm, as in
  /// transformers).
  at::Tensor side_by_side(const at::Tensor& last) const;

 private:
  std::vector<int64_t> layers_;
  int64_t num_layers_;
  std::vector<at::Tensor> outputs_;  // by entry of layers_
};

}  // namespace blockscope
