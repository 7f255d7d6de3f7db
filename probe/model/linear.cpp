#include "probe/model/linear.h"

#include <ATen/ATen.h>
#include <ATen/core/List.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/simd/instruction_set.h"

namespace blockscope {
namespace {

using Reorder = at::Tensor(const at::Tensor&, std::optional<c10::SymInt>);
using Product = at::Tensor(const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&,
                           std::string_view, c10::List<std::optional<at::Scalar>>,
                           std::optional<std::string_view>);

template <class Signature>
std::optional<c10::TypedOperatorHandle<Signature>> find(const char* name) {
  try {
    const auto schema = c10::Dispatcher::singleton().findSchema({name, ""});
    if (schema) return schema->typed<Signature>();
  } catch (const c10::Error&) {
    // Another LibTorch may have this operator with other arguments. Then weights are not packed.
  }
  return std::nullopt;
}

const auto& reorder() {
  static const auto handle = find<Reorder>("mkldnn::_reorder_linear_weight");
  return handle;
}

const auto& product() {
  static const auto handle = find<Product>("mkldnn::_linear_pointwise");
  return handle;
}

// The layout for this number of rows is as good for other numbers as their own layouts.
constexpr int64_t kRowsHint = 512;
// For fewer weights, finding oneDNN's kernel costs more than packing saves.
constexpr int64_t kFewestWeights = 1 << 16;

/// Whether LibTorch lets oneDNN multiply this dtype. Half needs AVX-512 FP16, which was on none of
/// the CPUs of our measurements.
bool has_kernel(at::ScalarType type) {
  if (!at::globalContext().userEnabledMkldnn() || !reorder() || !product()) return false;
  if (type == at::kFloat) return true;
#if defined(__x86_64__)
  return type == at::kBFloat16 && has_avx512();
#else
  return false;
#endif
}

/// Tensors that are adjacent in memory as one tensor, along their first dimension; undefined if
/// they are not adjacent.
at::Tensor as_one(const std::vector<at::Tensor>& parts) {
  int64_t rows = 0;
  const at::Tensor& first = parts.front();
  const auto* next = static_cast<const char*>(first.const_data_ptr());
  for (const at::Tensor& part : parts) {
    const bool follows = part.const_data_ptr() == next && part.is_contiguous() &&
                         part.storage().is_alias_of(first.storage());
    if (!follows || part.sizes().slice(1) != first.sizes().slice(1)) return {};
    next += part.nbytes();
    rows += part.size(0);
  }
  std::vector<int64_t> shape = first.sizes().vec();
  shape.front() = rows;
  return first.as_strided(shape, first.strides());
}

/// at::dropout, which on a CPU draws one 64-bit number an element, on one core: a sixth of the time
/// of a training step. Here a number serves four elements, so `share` is a multiple of 2^-16.
at::Tensor with_dropout(const at::Tensor& x, double share) {
  if (!x.is_cpu()) return at::dropout(x, share, true);
  constexpr double kSteps = 65536.0;
  const double dropped = std::round(share * kSteps);
  const at::Tensor bits =
      at::empty({(x.numel() + 3) / 4}, at::kLong)
          .random_(std::numeric_limits<int64_t>::min(), std::optional<int64_t>())
          .view(at::kShort)
          .narrow(0, 0, x.numel())
          .view(x.sizes());
  const at::Tensor kept = bits.ge(dropped + std::numeric_limits<int16_t>::min());
  return x * kept.to(x.scalar_type()).mul_(kSteps / (kSteps - dropped));
}

}  // namespace

Linear::Linear(at::Tensor weight, at::Tensor bias)
    : weight_(std::move(weight)), bias_(std::move(bias)), out_(weight_.size(0)) {}

void Linear::pack() {
  if (!defined() || packed() || part_.a.defined() || !weight_.is_cpu()) return;
  if (PackedMatrix::fits(weight_)) {
    matrix_ = PackedMatrix(weight_, bias_);
    weight_ = at::Tensor();
    return;
  }
  if (weight_.numel() < kFewestWeights || !has_kernel(weight_.scalar_type())) return;
  weight_ = reorder()->call(weight_.detach().contiguous(), c10::SymInt(kRowsHint));
  by_onednn_ = true;
}

Linear joined(const std::vector<const Linear*>& parts) {
  std::vector<at::Tensor> weights;
  std::vector<at::Tensor> biases;
  for (const Linear* part : parts) {
    if (!part->weight().defined() || part->weight().is_cpu()) return {};
    weights.push_back(part->weight());
    if (part->bias().defined()) biases.push_back(part->bias());
  }
  const at::Tensor weight = as_one(weights);
  if (!weight.defined()) return {};
  if (biases.empty()) return Linear(weight);
  const at::Tensor bias = biases.size() == parts.size() ? as_one(biases) : at::Tensor();
  return bias.defined() ? Linear(weight, bias) : Linear();
}

at::Tensor Linear::operator()(const at::Tensor& x) const {
  if (matrix_.defined()) return matrix_(x);
  if (part_.a.defined()) {
    const at::Tensor dropped = part_.dropout > 0.0 ? with_dropout(x, part_.dropout) : x;
    const at::Tensor part = at::linear(at::linear(dropped, part_.a), part_.b);
    return at::linear(x, weight_, bias_) + part * part_.scale;
  }
  if (!by_onednn_) return at::linear(x, weight_, bias_);
  if (x.numel() == 0) {
    std::vector<int64_t> shape = x.sizes().vec();
    shape.back() = out_;
    return at::empty(shape, x.options());
  }
  const std::optional<at::Tensor> bias =
      bias_.defined() ? std::optional<at::Tensor>(bias_) : std::nullopt;
  return product()->call(x, weight_, bias, "none", c10::List<std::optional<at::Scalar>>(), "");
}

}  // namespace blockscope
