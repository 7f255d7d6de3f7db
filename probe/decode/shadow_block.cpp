#include "probe/decode/shadow_block.h"

#include <ATen/ATen.h>

#include <limits>

#include "probe/model/device.h"

namespace blockscope {
namespace {

/// [B, L + B]: -inf if a shadow row does not see a key, else 0. The keys of the canvas are in their
/// stored order, with the block's last.
at::Tensor shadow_mask(const CanvasShape& shape) {
  const int64_t block = shape.block_length;
  at::Tensor mask = at::zeros({block, shape.length + block}, at::kFloat);
  mask.narrow(1, shape.length - block, block)
      .fill_diagonal_(-std::numeric_limits<double>::infinity());
  return mask;
}

}  // namespace

at::Tensor shadow_attention(int64_t layer, const AttentionLayer& weights, const at::Tensor& x,
                            const RotaryRows& rotary, const CanvasKeys& keys) {
  const int64_t group = weights.num_heads / weights.num_kv_heads;
  const int64_t block = keys.shape().block_length;
  const at::Tensor k = at::cat({keys.all_keys(layer), weights.key(x, rotary)}, 2);
  const at::Tensor v = at::cat({keys.all_values(layer), weights.value(x)}, 2);
  // The query heads that share a KV head become more rows of that head.
  const at::Tensor q =
      weights.query(x, rotary).reshape({1, weights.num_kv_heads, group * block, weights.head_dim});
  const at::Tensor scores = (at::matmul(q, k.transpose(2, 3)).to(at::kFloat) * weights.scale())
                                .reshape({1, weights.num_kv_heads, group, block, -1})
                                .add_(on_device(shadow_mask(keys.shape()), x.device()));
  const at::Tensor p =
      at::softmax(scores, -1).reshape({1, weights.num_kv_heads, group * block, -1});
  const at::Tensor z = at::matmul(p.to(v.scalar_type()), v);
  return weights.output(z.reshape({1, weights.num_heads, block, weights.head_dim}));
}

}  // namespace blockscope
