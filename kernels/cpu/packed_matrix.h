// The weights of linear layers, laid out once for products with few rows.
//
// A decoding pass multiplies a few dozen rows by weights that never change: it streams them from
// memory. Each thread reads its share from one end to the other (panels, linear_kernels.h), out of
// huge pages where the system gives them. Products of float32 and bfloat16 on CPUs with AVX-512
// (bfloat16: with AMX, or else with its bfloat16 products). Sums are float32 and rounded once; a
// row of the result never depends on the other rows or on the number of threads.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

namespace blockscope {

class PackedMatrix {
 public:
  PackedMatrix() = default;

  /// Whether this CPU has kernels for `weight` [out, in]: its dtype, and rows of whole 4 bytes.
  static bool fits(const at::Tensor& weight);

  /// x -> x weight^T + bias: weight [out, in], bias [out] of its dtype, or undefined. c10::Error
  /// where the weight does not fit.
  explicit PackedMatrix(const at::Tensor& weight, const at::Tensor& bias = {});

  /// x -> silu(x gate^T) * (x up^T), both [out, in]; narrow types are rounded wherever a chain of
  /// four operators stores a tensor.
  static PackedMatrix swiglu(const at::Tensor& gate, const at::Tensor& up);

  bool defined() const { return panels_.defined(); }

  /// x [..., in] -> [..., out], contiguous, in the weight's dtype, which x must have.
  at::Tensor operator()(const at::Tensor& x) const;

 private:
  friend struct PackedProducts;

  at::Tensor panels_;  // int32 [panels, steps, kPanelColumns]
  at::Tensor bias_;    // [out]
  at::ScalarType dtype_ = at::kFloat;
  int64_t in_ = 0, out_ = 0;
  bool swiglu_ = false;
};

/// A matrix and how many rows it is multiplied with.
struct MatrixRows {
  const PackedMatrix* matrix = nullptr;
  int64_t rows = 0;
};

/// Matrices of one shape, each times the rows of x [R, in] behind those of the one before it (their
/// numbers add up to R), in one pass over all of them -> [R, out]: what a mixture of experts needs.
at::Tensor packed_products(const at::Tensor& x, std::span<const MatrixRows> matrices);

/// x [..., in] times each of several matrices of one dtype and depth, in one pass over all of them
/// -> [..., out] each: a layer's queries, keys and values.
std::vector<at::Tensor> packed_products(const at::Tensor& x,
                                        const std::vector<const PackedMatrix*>& matrices);

}  // namespace blockscope
