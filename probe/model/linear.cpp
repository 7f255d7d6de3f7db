#include "probe/model/linear.h"

#include <ATen/ATen.h>
#include <ATen/core/List.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/instruction_set.h"

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
    // Another LibTorch may have it with other arguments: then weights stay as they are.
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

// The layout for this many rows serves fewer and more of them as well as their own would.
constexpr int64_t kRowsHint = 512;
// Below, finding oneDNN's kernel costs more than packing saves.
constexpr int64_t kFewestWeights = 1 << 16;

/// The dtypes that LibTorch lets oneDNN multiply here. Half needs AVX-512 FP16, which no CPU that
/// this was measured on has.
bool has_kernel(at::ScalarType type) {
  if (!at::globalContext().userEnabledMkldnn() || !reorder() || !product()) return false;
  if (type == at::kFloat) return true;
#if defined(__x86_64__)
  return type == at::kBFloat16 && has_avx512();
#else
  return false;
#endif
}

}  // namespace

Linear::Linear(at::Tensor weight, at::Tensor bias)
    : weight_(std::move(weight)), bias_(std::move(bias)), out_(weight_.size(0)) {}

void Linear::pack() {
  if (!defined() || packed()) return;
  if (PackedMatrix::fits(weight_)) {
    matrix_ = PackedMatrix(weight_, bias_);
    weight_ = at::Tensor();
    return;
  }
  if (weight_.numel() < kFewestWeights || !has_kernel(weight_.scalar_type())) return;
  weight_ = reorder()->call(weight_.detach().contiguous(), c10::SymInt(kRowsHint));
  by_onednn_ = true;
}

at::Tensor Linear::operator()(const at::Tensor& x) const {
  if (matrix_.defined()) return matrix_(x);
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
