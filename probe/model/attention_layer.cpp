#include "probe/model/attention_layer.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>

#include "kernels/torch/fallback_operators.h"
#include "probe/model/device.h"

namespace blockscope {
namespace {

/// [S, T, heads * D] -> [S, heads, T, D].
at::Tensor heads_of(const at::Tensor& flat, int64_t heads, int64_t head_dim) {
  return flat.view({flat.size(0), flat.size(1), heads, head_dim}).transpose(1, 2);
}

/// Queries of Ministral grow with their position.
at::Tensor scaled_query(const at::Tensor& query, const RotaryRows& rotary) {
  return rotary.query_scale.defined() ? query * rotary.query_scale : query;
}

/// Whether autograd may need a derivative. The fallbacks have one; the one-pass operators have
/// none.
bool is_trained(const at::Tensor& x, const at::Tensor& weight) {
  const bool asked = x.requires_grad() || (weight.defined() && weight.requires_grad());
  return c10::GradMode::is_enabled() && asked;
}

}  // namespace

RotaryRows RotaryRows::rows(const at::Tensor& index) const {
  const at::Tensor there = kept_on(index, cos.device());
  return {cos.index_select(2, there), sin.index_select(2, there),
          query_scale.defined() ? query_scale.index_select(2, there) : at::Tensor()};
}

at::Tensor RmsNorm::operator()(const at::Tensor& x) const {
  const auto norm = is_trained(x, weight) ? fallback::rms_norm_rows : rms_norm_rows;
  return norm(x, weight, eps, weight_before_cast);
}

SumAndNorm RmsNorm::of_sum(const at::Tensor& x, const at::Tensor& y) const {
  const bool trained = is_trained(x, weight) || is_trained(y, weight);
  const auto add_norm = trained ? fallback::add_rms_norm_rows : add_rms_norm_rows;
  return add_norm(x, y, weight, eps, weight_before_cast);
}

std::vector<at::Tensor> AttentionLayer::turned(const std::vector<HeadsToRotate>& heads,
                                               const RotaryRows& rotary) const {
  const bool trained = std::any_of(heads.begin(), heads.end(), [](const HeadsToRotate& each) {
    return is_trained(each.x, each.weight);
  });
  const at::ScalarType type = rotate_in_float32 ? at::kFloat : heads.front().x.scalar_type();
  const auto turn = trained ? fallback::norm_rotate_rows : norm_rotate_rows;
  return turn(heads, rotary.cos.to(type), rotary.sin.to(type));
}

HeadsToRotate AttentionLayer::query_heads(const at::Tensor& flat) const {
  return {heads_of(flat, num_heads, head_dim), q_norm.weight, q_norm.eps,
          q_norm.weight_before_cast};
}

HeadsToRotate AttentionLayer::key_heads(const at::Tensor& flat) const {
  return {heads_of(flat, num_kv_heads, head_dim), k_norm.weight, k_norm.eps,
          k_norm.weight_before_cast};
}

/// Queries, keys and values of the rows, [S, T, heads * D], in as few products as possible.
std::vector<at::Tensor> AttentionLayer::products(const at::Tensor& x) const {
  if (values_are_keys) {
    const at::Tensor key = k_proj(x);
    return {q_proj(x), key, key};
  }
  if (qkv_proj.defined()) {
    const int64_t keys = num_kv_heads * head_dim;
    return qkv_proj(x).split_with_sizes({num_heads * head_dim, keys, keys}, -1);
  }
  if (q_proj.matrix().defined() && k_proj.matrix().defined() && v_proj.matrix().defined()) {
    return packed_products(x, {&q_proj.matrix(), &k_proj.matrix(), &v_proj.matrix()});
  }
  return {q_proj(x), k_proj(x), v_proj(x)};
}

AttentionLayer::Projections AttentionLayer::project(const at::Tensor& x,
                                                    const RotaryRows& rotary) const {
  const std::vector<at::Tensor> made = products(x);
  const std::vector<at::Tensor> heads = turned({query_heads(made[0]), key_heads(made[1])}, rotary);
  return {scaled_query(heads[0], rotary), heads[1], value_heads(made[2])};
}

at::Tensor AttentionLayer::value_heads(const at::Tensor& flat) const {
  if (!v_norm.defined()) return heads_of(flat, num_kv_heads, head_dim);
  return heads_of(v_norm(flat.unflatten(-1, {num_kv_heads, head_dim})).flatten(-2), num_kv_heads,
                  head_dim);
}

at::Tensor AttentionLayer::query(const at::Tensor& x, const RotaryRows& rotary) const {
  return scaled_query(turned({query_heads(q_proj(x))}, rotary).front(), rotary);
}

at::Tensor AttentionLayer::key(const at::Tensor& x, const RotaryRows& rotary) const {
  return turned({key_heads(k_proj(x))}, rotary).front();
}

at::Tensor AttentionLayer::value(const at::Tensor& x) const {
  return value_heads(values_are_keys ? k_proj(x) : v_proj(x));
}

at::Tensor AttentionLayer::output(const at::Tensor& z) const {
  const at::Tensor flat = z.transpose(1, 2).reshape({z.size(0), z.size(2), num_heads * head_dim});
  return o_proj(flat);
}

void AttentionLayer::pack() {
  if (!values_are_keys) qkv_proj = joined({&q_proj, &k_proj, &v_proj});
  for (Linear* linear : {&q_proj, &k_proj, &v_proj, &o_proj}) {
    if (linear->defined()) linear->pack();
  }
}

double AttentionLayer::scale() const {
  return softmax_scale > 0.0 ? softmax_scale : 1.0 / std::sqrt(static_cast<double>(head_dim));
}

}  // namespace blockscope
