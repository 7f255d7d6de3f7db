#include "probe/train/masked_attention.h"

#include <ATen/ATen.h>

namespace blockscope {
namespace {

/// The columns of x that a chunk sees, along dimension `dim`.
at::Tensor columns(const at::Tensor& x, int64_t dim, const RowChunk& chunk) {
  const at::Tensor shared = x.narrow(dim, 0, chunk.shared);
  if (chunk.own_end == chunk.own_begin) return shared;
  return at::cat({shared, x.narrow(dim, chunk.own_begin, chunk.own_end - chunk.own_begin)}, dim);
}

}  // namespace

MaskedAttention::MaskedAttention(const at::Tensor& mask, const std::vector<RowChunk>& chunks,
                                 at::ScalarType dtype)
    : chunks_(chunks), dtype_(dtype) {
  const at::Tensor cast = mask.to(dtype);
  for (const RowChunk& chunk : chunks_) {
    const at::Tensor rows = cast.narrow(2, chunk.begin, chunk.end - chunk.begin);
    masks_.push_back(columns(rows, 3, chunk));
  }
}

at::Tensor MaskedAttention::attention(const AttentionInput& input) {
  const at::Tensor q = input.q.to(dtype_);
  const int64_t sequences = q.size(0);
  const int64_t heads = q.size(1);
  const int64_t length = q.size(2);
  const auto per_query_head = [&](const at::Tensor& x) {  // KV head h / G for query head h
    const int64_t kv_heads = x.size(1);
    return x.to(dtype_)
        .unsqueeze(2)
        .expand({sequences, kv_heads, heads / kv_heads, length, x.size(3)})
        .reshape({sequences, heads, length, x.size(3)});
  };
  const at::Tensor k = per_query_head(input.k);
  const at::Tensor v = per_query_head(input.v);
  std::vector<at::Tensor> parts;
  for (size_t i = 0; i < chunks_.size(); ++i) {
    const RowChunk& chunk = chunks_[i];
    parts.push_back(at::scaled_dot_product_attention(
        q.narrow(2, chunk.begin, chunk.end - chunk.begin), columns(k, 2, chunk),
        columns(v, 2, chunk), masks_[i], 0.0, false, input.scale));
  }
  const at::Tensor z = parts.size() == 1 ? parts.front() : at::cat(parts, 2);
  return z.to(input.q.scalar_type());
}

}  // namespace blockscope
