// The linear layers of a model: y = x w^T + b.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "kernels/cpu/packed_matrix.h"

namespace blockscope {

/// The trained part of a projection (LoRA, arXiv 2106.09685; PEFT's lora.Linear): adds
/// scale * dropout(x) A^T B^T. Dropout draws from torch's default generator.
struct LowRank {
  at::Tensor a;          // [r, in]
  at::Tensor b;          // [out, r]
  double scale = 1.0;    // lora_alpha / r
  double dropout = 0.0;  // share of x's entries that are zeroed; the others grow by 1 / (1 - share)
};

/// x [..., in] -> [..., out], in the dtype of the weight.
///
/// A decoding pass multiplies a few dozen rows by weights that never change. MKL and oneDNN lay the
/// weights of a checkpoint out anew at every call, which costs as much as the product. `pack()`
/// does it once, for our kernels (packed_matrix.h). If there is no such kernel for this CPU and
/// dtype, it uses oneDNN, as LibTorch does for frozen models (`mkldnn::_reorder_linear_weight`,
/// `mkldnn::_linear_pointwise`).
class Linear {
 public:
  Linear() = default;
  /// weight [out, in]; bias [out] or undefined. Both are used unchanged.
  explicit Linear(at::Tensor weight, at::Tensor bias = {});

  bool defined() const { return weight_.defined() || matrix_.defined(); }

  at::Tensor operator()(const at::Tensor& x) const;

  /// Lays the weight out once for the products of this CPU. Changes nothing on another device, for
  /// a dtype without a kernel, and for a weight too small for oneDNN to gain. Not differentiable.
  void pack();
  /// Adds a trained part. The layer can't be packed afterwards.
  void add(LowRank part) { part_ = std::move(part); }
  bool packed() const { return matrix_.defined() || by_onednn_; }

  const at::Tensor& weight() const { return weight_; }    // undefined if packed for our kernels
  const PackedMatrix& matrix() const { return matrix_; }  // defined if packed for our kernels
  const at::Tensor& bias() const { return bias_; }        // undefined if there is none

 private:
  at::Tensor weight_;  // [out, in]; by_onednn_: in oneDNN's layout, opaque to ATen
  at::Tensor bias_;
  PackedMatrix matrix_;
  LowRank part_;  // undefined: none
  int64_t out_ = 0;
  bool by_onednn_ = false;
};

/// Joins linear layers of the same rows to one, for a device: one launch instead of several. The
/// last dimension of its result holds theirs one after another. It takes no memory, because their
/// weights, and biases if any, must be adjacent in memory (empty_weights()). Undefined if they are
/// not adjacent, and on the CPU, where pack() has a better layout.
Linear joined(const std::vector<const Linear*>& parts);

}  // namespace blockscope
