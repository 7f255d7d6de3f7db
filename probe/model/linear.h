// The linear layers of a model: y = x w^T + b.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "kernels/cpu/packed_matrix.h"

namespace blockscope {

/// x [..., in] -> [..., out], in the dtype of the weight.
///
/// A decoding pass multiplies a few dozen rows by weights that never change. As they lie in a
/// checkpoint, MKL and oneDNN lay them out anew for their kernels at every call, which costs as
/// much as the product; `pack()` does it once: for our kernels (packed_matrix.h) or, where this CPU
/// has none of them for the dtype, through oneDNN as LibTorch has it for frozen models
/// (`mkldnn::_reorder_linear_weight`, `mkldnn::_linear_pointwise`).
class Linear {
 public:
  Linear() = default;
  /// weight [out, in]; bias [out], or undefined. Both are used as they are.
  explicit Linear(at::Tensor weight, at::Tensor bias = {});

  bool defined() const { return weight_.defined() || matrix_.defined(); }

  at::Tensor operator()(const at::Tensor& x) const;

  /// Lays the weight out, once, for the products of this CPU. Left as it is on another device,
  /// where there is no kernel for its dtype, and where it is too small for oneDNN to gain. Not
  /// differentiable.
  void pack();
  bool packed() const { return matrix_.defined() || by_onednn_; }

  const at::Tensor& weight() const { return weight_; }    // undefined when packed by us
  const PackedMatrix& matrix() const { return matrix_; }  // undefined when not
  const at::Tensor& bias() const { return bias_; }        // undefined without

 private:
  at::Tensor weight_;  // [out, in]; by_onednn_: its layout, opaque to ATen
  at::Tensor bias_;
  PackedMatrix matrix_;
  int64_t out_ = 0;
  bool by_onednn_ = false;
};

/// On a device, linear layers of the same rows as one, whose results stand behind one another in
/// the last dimension: one launch instead of several. It takes no memory: their weights, and biases
/// if they have any, must lie behind one another in it (empty_weights()). Undefined where they
/// don't, and on the CPU, where pack() lays them out better.
Linear joined(const std::vector<const Linear*>& parts);

}  // namespace blockscope
