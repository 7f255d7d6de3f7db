// row_ops.h in terms of torch operators.
#include <ATen/ATen.h>

#include "kernels/torch/fallback_operators.h"

namespace blockscope::fallback {
namespace {

using at::Tensor;

/// Rotate-half RoPE over as many first channels as cos has: x [S, heads, T, D].
Tensor rotated(const Tensor& x, const Tensor& cos, const Tensor& sin) {
  const int64_t turning = cos.size(-1);
  if (turning < x.size(-1)) {
    const Tensor rest = x.narrow(-1, turning, x.size(-1) - turning);
    return at::cat({rotated(x.narrow(-1, 0, turning), cos, sin), rest}, -1);
  }
  if (cos.scalar_type() != x.scalar_type()) {  // rotate before rounding
    return rotated(x.to(cos.scalar_type()), cos, sin).to(x.scalar_type());
  }
  const int64_t half = turning / 2;
  const Tensor turned = at::cat({-x.narrow(-1, half, half), x.narrow(-1, 0, half)}, -1);
  return x * cos + turned * sin;
}

}  // namespace

Tensor rms_norm_rows(const Tensor& x, const Tensor& weight, double eps, bool weight_first) {
  if (x.scalar_type() == at::kFloat) return at::rms_norm(x, weight.sizes(), weight, eps);
  const Tensor x32 = x.to(at::kFloat);
  const Tensor normed = x32 * at::rsqrt(x32.square().mean(-1, true) + eps);
  if (weight_first) return (normed * weight.to(at::kFloat)).to(x.scalar_type());
  return normed.to(x.scalar_type()) * weight;
}

SumAndNorm add_rms_norm_rows(const Tensor& x, const Tensor& y, const Tensor& weight, double eps,
                             bool weight_first) {
  const Tensor sum = x + y;
  return {sum, rms_norm_rows(sum, weight, eps, weight_first)};
}

std::vector<Tensor> norm_rotate_rows(const std::vector<HeadsToRotate>& heads, const Tensor& cos,
                                     const Tensor& sin) {
  std::vector<Tensor> turned;
  for (const HeadsToRotate& each : heads) {
    const Tensor x = each.weight.defined()
                         ? rms_norm_rows(each.x, each.weight, each.eps, each.weight_first)
                         : each.x;
    turned.push_back(rotated(x, cos, sin));
  }
  return turned;
}

Tensor silu_multiply(const Tensor& gate, const Tensor& up) { return at::silu(gate) * up; }

}  // namespace blockscope::fallback
