#include "probe/model/attention_layer.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <cmath>

#include "kernels/row_ops.h"

namespace blockscope {
namespace {

/// [S, T, heads * D] -> [S, heads, T, D].
at::Tensor heads_of(const at::Tensor& flat, int64_t heads, int64_t head_dim) {
  return flat.view({flat.size(0), flat.size(1), heads, head_dim}).transpose(1, 2);
}

/// Rotate-half RoPE over the first channels, as many as cos has: x [S, heads, T, D].
at::Tensor rotated_by_chain(const at::Tensor& x, const RotaryRows& rotary, bool in_float32) {
  const int64_t turning = rotary.cos.size(-1);
  if (turning < x.size(-1)) {
    const at::Tensor rest = x.narrow(-1, turning, x.size(-1) - turning);
    return at::cat({rotated_by_chain(x.narrow(-1, 0, turning), rotary, in_float32), rest}, -1);
  }
  if (in_float32 && x.scalar_type() != at::kFloat) {
    const RotaryRows exact{rotary.cos.to(at::kFloat), rotary.sin.to(at::kFloat)};
    return rotated_by_chain(x.to(at::kFloat), exact, false).to(x.scalar_type());
  }
  const int64_t half = x.size(-1) / 2;
  const at::Tensor turned = at::cat({-x.narrow(-1, half, half), x.narrow(-1, 0, half)}, -1);
  const at::ScalarType type = x.scalar_type();
  return x * rotary.cos.to(type) + turned * rotary.sin.to(type);
}

at::Tensor rotated(const at::Tensor& x, const RotaryRows& rotary, bool in_float32) {
  if (x.requires_grad() || !x.is_cpu()) return rotated_by_chain(x, rotary, in_float32);
  const at::ScalarType table = in_float32 ? at::kFloat : x.scalar_type();
  return rotate_rows(x, rotary.cos.to(table), rotary.sin.to(table));
}

}  // namespace

RotaryRows RotaryRows::rows(const at::Tensor& index) const {
  return {cos.index_select(2, index), sin.index_select(2, index)};
}

at::Tensor RmsNorm::operator()(const at::Tensor& x) const {
  const bool trained = c10::GradMode::is_enabled() && (x.requires_grad() || weight.requires_grad());
  if (!trained && x.is_cpu()) return rms_norm_rows(x, weight, eps, weight_before_cast);
  if (x.scalar_type() == at::kFloat) return at::rms_norm(x, weight.sizes(), weight, eps);
  const at::Tensor x32 = x.to(at::kFloat);
  const at::Tensor normed = x32 * at::rsqrt(x32.square().mean(-1, true) + eps);
  if (weight_before_cast) return (normed * weight.to(at::kFloat)).to(x.scalar_type());
  return normed.to(x.scalar_type()) * weight;
}

at::Tensor AttentionLayer::query(const at::Tensor& x, const RotaryRows& rotary) const {
  at::Tensor q = heads_of(q_proj(x), num_heads, head_dim);
  if (q_norm.defined()) q = q_norm(q);
  return rotated(q, rotary, rotate_in_float32);
}

at::Tensor AttentionLayer::key(const at::Tensor& x, const RotaryRows& rotary) const {
  at::Tensor k = heads_of(k_proj(x), num_kv_heads, head_dim);
  if (k_norm.defined()) k = k_norm(k);
  return rotated(k, rotary, rotate_in_float32);
}

at::Tensor AttentionLayer::value(const at::Tensor& x) const {
  return heads_of(v_proj(x), num_kv_heads, head_dim);
}

at::Tensor AttentionLayer::output(const at::Tensor& z) const {
  const at::Tensor flat = z.transpose(1, 2).reshape({z.size(0), z.size(2), num_heads * head_dim});
  return o_proj(flat);
}

void AttentionLayer::pack() {
  for (Linear* linear : {&q_proj, &k_proj, &v_proj, &o_proj}) linear->pack();
}

double AttentionLayer::scale() const { return 1.0 / std::sqrt(static_cast<double>(head_dim)); }

}  // namespace blockscope
