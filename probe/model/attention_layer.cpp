#include "probe/model/attention_layer.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <cmath>

#include "kernels/row_ops.h"
#include "probe/model/device.h"

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

/// Whether the one-pass operators of row_ops.h may stand for the chains, which are differentiable.
bool by_rows(const at::Tensor& x, const at::Tensor& weight) {
  const bool trained = x.requires_grad() || (weight.defined() && weight.requires_grad());
  return !(c10::GradMode::is_enabled() && trained) && x.is_cpu();
}

RotaryRows in_type(const RotaryRows& rotary, at::ScalarType type) {
  return {rotary.cos.to(type), rotary.sin.to(type)};
}

}  // namespace

RotaryRows RotaryRows::rows(const at::Tensor& index) const {
  const at::Tensor there = on_device(index, cos.device());
  return {cos.index_select(2, there), sin.index_select(2, there)};
}

at::Tensor RmsNorm::operator()(const at::Tensor& x) const {
  if (by_rows(x, weight)) return rms_norm_rows(x, weight, eps, weight_before_cast);
  if (x.scalar_type() == at::kFloat) return at::rms_norm(x, weight.sizes(), weight, eps);
  const at::Tensor x32 = x.to(at::kFloat);
  const at::Tensor normed = x32 * at::rsqrt(x32.square().mean(-1, true) + eps);
  if (weight_before_cast) return (normed * weight.to(at::kFloat)).to(x.scalar_type());
  return normed.to(x.scalar_type()) * weight;
}

SumAndNorm RmsNorm::of_sum(const at::Tensor& x, const at::Tensor& y) const {
  if (by_rows(x, weight) && by_rows(y, weight))
    return add_rms_norm_rows(x, y, weight, eps, weight_before_cast);
  at::Tensor sum = x + y;
  at::Tensor norm = (*this)(sum);
  return {std::move(sum), std::move(norm)};
}

at::Tensor AttentionLayer::turned(const at::Tensor& heads, const RmsNorm& norm,
                                  const RotaryRows& rotary) const {
  if (!by_rows(heads, norm.weight)) {
    return rotated_by_chain(norm.defined() ? norm(heads) : heads, rotary, rotate_in_float32);
  }
  const RotaryRows table = in_type(rotary, rotate_in_float32 ? at::kFloat : heads.scalar_type());
  return norm_rotate_rows({{heads, norm.weight, norm.eps, norm.weight_before_cast}}, table.cos,
                          table.sin)
      .front();
}

AttentionLayer::Projections AttentionLayer::project(const at::Tensor& x,
                                                    const RotaryRows& rotary) const {
  const bool fused = q_proj.matrix().defined() && k_proj.matrix().defined() &&
                     v_proj.matrix().defined() && x.is_cpu();
  if (!fused) return {query(x, rotary), key(x, rotary), value(x)};
  const std::vector<at::Tensor> made =
      packed_products(x, {&q_proj.matrix(), &k_proj.matrix(), &v_proj.matrix()});
  const RotaryRows table = in_type(rotary, rotate_in_float32 ? at::kFloat : x.scalar_type());
  const auto to_turn = [&](const at::Tensor& flat, int64_t heads, const RmsNorm& norm) {
    return HeadsToRotate{heads_of(flat, heads, head_dim), norm.weight, norm.eps,
                         norm.weight_before_cast};
  };
  const std::vector<at::Tensor> turned_heads = norm_rotate_rows(
      {to_turn(made[0], num_heads, q_norm), to_turn(made[1], num_kv_heads, k_norm)}, table.cos,
      table.sin);
  return {turned_heads[0], turned_heads[1], heads_of(made[2], num_kv_heads, head_dim)};
}

at::Tensor AttentionLayer::query(const at::Tensor& x, const RotaryRows& rotary) const {
  return turned(heads_of(q_proj(x), num_heads, head_dim), q_norm, rotary);
}

at::Tensor AttentionLayer::key(const at::Tensor& x, const RotaryRows& rotary) const {
  return turned(heads_of(k_proj(x), num_kv_heads, head_dim), k_norm, rotary);
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
