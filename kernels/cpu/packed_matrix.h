// The weights of linear layers, arranged once for products with few rows.
//
// A decoding pass multiplies a few dozen rows by constant weights, so it streams the weights from
// memory. Each thread reads its share from start to end (panels, linear_kernels.h), from huge pages
// if the system has them. There are products of float32 and bfloat16 for CPUs with AVX-512
// (bfloat16: with AMX, or else with AVX512-BF16). Sums are float32 and rounded once. A row of the
// result never depends on the other rows or on the number of threads.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

namespace blockscope {

/// What a gated unit does to its gate: x / (1 + exp(-x)), or the tanh approximation of GELU.
enum class Activation { silu, gelu_tanh };

class PackedMatrix {
 public:
  PackedMatrix() = default;

  /// Whether this CPU has kernels for `weight` [out, in]: for its dtype, with rows of a multiple of
  /// 4 bytes.
  static bool fits(const at::Tensor& weight);

  /// x -> x weight^T + bias. weight [out, in]; bias [out] of the same dtype, or undefined. Throws
  /// c10::Error if the weight does not fit.
  explicit PackedMatrix(const at::Tensor& weight, const at::Tensor& bias = {});

  /// x -> activation(x gate^T) * (x up^T), both [out, in]. Narrow types are rounded where a chain
  /// of four operators would store a tensor.
  static PackedMatrix gated(const at::Tensor& gate, const at::Tensor& up,
                            Activation activation = Activation::silu);

  bool defined() const { return panels_.defined(); }

  /// x [..., in] -> [..., out], contiguous. x must have the weight's dtype.
  at::Tensor operator()(const at::Tensor& x) const;

 private:
  friend struct PackedProducts;

  at::Tensor panels_;  // int32 [panels, steps, kPanelColumns]
  at::Tensor bias_;    // [out]
  at::ScalarType dtype_ = at::kFloat;
  int64_t in_ = 0, out_ = 0;
  bool gated_ = false;
  Activation activation_ = Activation::silu;
};

/// A matrix, and the number of rows that it multiplies.
struct MatrixRows {
  const PackedMatrix* matrix = nullptr;
  int64_t rows = 0;
};

/// Multiplies matrices of one shape with consecutive rows of x [R, in] -> [R, out], in one pass.
/// The first matrix takes the first rows, and so on; the numbers of rows add up to R. For a mixture
/// of experts.
at::Tensor packed_products(const at::Tensor& x, std::span<const MatrixRows> matrices);

/// Multiplies x [..., in] with each of several matrices of one dtype and depth -> [..., out] each,
/// in one pass. For a layer's queries, keys and values.
std::vector<at::Tensor> packed_products(const at::Tensor& x,
                                        const std::vector<const PackedMatrix*>& matrices);

}  // namespace blockscope
