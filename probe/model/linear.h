// The linear layers of a model: y = x w^T + b.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace blockscope {

/// x [..., in] -> [..., out], in the dtype of the weight.
///
/// A decoding pass multiplies a few dozen rows by weights that never change. As they lie in a
/// checkpoint, MKL and oneDNN lay them out anew for their kernels at every call, which costs as
/// much as the product; `pack()` does it once, through oneDNN as LibTorch has it for frozen
/// models (`mkldnn::_reorder_linear_weight`, `mkldnn::_linear_pointwise`).
class Linear {
 public:
  Linear() = default;
  /// weight [out, in]; bias [out], or undefined. Both are used as they are.
  explicit Linear(at::Tensor weight, at::Tensor bias = {});

  bool defined() const { return weight_.defined(); }

  at::Tensor operator()(const at::Tensor& x) const;

  /// Lays the weight out, once, for the products of this CPU. Left as it is where oneDNN has no
  /// kernel for its dtype on this CPU, and where it is too small to gain. Not differentiable.
  void pack();
  bool packed() const { return packed_; }

 private:
  at::Tensor weight_;  // [out, in]; packed: oneDNN's layout, opaque to ATen
  at::Tensor bias_;
  int64_t out_ = 0;
  bool packed_ = false;
};

}  // namespace blockscope
