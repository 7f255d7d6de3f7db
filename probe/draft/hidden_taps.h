// The hidden states of a target that its draft reads.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace blockscope {

class HiddenTaps {
 public:
  /// `layers`: whose outputs are kept, of `num_layers`.
  HiddenTaps(std::vector<int64_t> layers, int64_t num_layers);

  void begin_pass();
  /// From ForwardSeams::before_layer of a pass.
  void before_layer(int64_t layer, const at::Tensor& hidden);
  /// The kept outputs of the pass side by side, [S, T, layers * hidden_size]; `last`: what the
  /// model returned, which stands for the last layer's output (with the final norm, as in
  /// transformers).
  at::Tensor side_by_side(const at::Tensor& last) const;

 private:
  std::vector<int64_t> layers_;
  int64_t num_layers_;
  std::vector<at::Tensor> outputs_;  // by entry of layers_
};

}  // namespace blockscope
