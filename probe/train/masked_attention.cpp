#include "probe/train/masked_attention.h"

#include <ATen/ATen.h>

#include <cstdint>
#include <set>

namespace blockscope {
namespace {

/// A tensor cut along `dim` wherever a chunk's columns begin or end. Chunks concatenate their
/// columns from the pieces. The gradient of a cut is one concatenation; the gradient of a slice
/// would be a tensor of zeros as large as the whole, one for each chunk.
class Pieces {
 public:
  Pieces(const at::Tensor& x, std::int64_t dim, const std::vector<RowChunk>& chunks) : dim_(dim) {
    std::set<std::int64_t> cuts = {0, x.size(dim)};
    for (const RowChunk& chunk : chunks) {
      cuts.insert(chunk.shared);
      if (chunk.own_end > chunk.own_begin) cuts.insert({chunk.own_begin, chunk.own_end});
    }
    begins_.assign(cuts.begin(), cuts.end());
    std::vector<std::int64_t> sizes;
    for (std::size_t i = 0; i + 1 < begins_.size(); ++i) {
      sizes.push_back(begins_[i + 1] - begins_[i]);
    }
    pieces_ = x.split_with_sizes(sizes, dim);
  }

  /// The columns that `chunk` sees.
  at::Tensor columns(const RowChunk& chunk) const {
    std::vector<at::Tensor> seen;
    for (std::size_t i = 0; i < pieces_.size(); ++i) {
      const bool own = begins_[i] >= chunk.own_begin && begins_[i] < chunk.own_end;
      if (begins_[i] < chunk.shared || own) seen.push_back(pieces_[i]);
    }
    return seen.size() == 1 ? seen.front() : at::cat(seen, dim_);
  }

 private:
  std::int64_t dim_;
  std::vector<std::int64_t> begins_;  // of every piece, and the end of the last
  std::vector<at::Tensor> pieces_;
};

}  // namespace

MaskedAttention::MaskedAttention(const at::Tensor& mask, const std::vector<RowChunk>& chunks,
                                 at::ScalarType dtype)
    : chunks_(chunks), dtype_(dtype) {
  const at::Tensor cast = mask.to(dtype);
  for (const RowChunk& chunk : chunks_) {
    const at::Tensor rows = cast.narrow(2, chunk.begin, chunk.end - chunk.begin);
    masks_.push_back(Pieces(rows, 3, chunks_).columns(chunk));
  }
}

at::Tensor MaskedAttention::attention(const AttentionInput& input) {
  const at::Tensor q = input.q.to(dtype_);
  const int64_t sequences = q.size(0);
  const int64_t heads = q.size(1);
  const auto per_query_head = [&](const at::Tensor& x) {  // KV head h / G for query head h
    const int64_t kv_heads = x.size(1);
    const int64_t length = x.size(2);
    return x.to(dtype_)
        .unsqueeze(2)
        .expand({sequences, kv_heads, heads / kv_heads, length, x.size(3)})
        .reshape({sequences, heads, length, x.size(3)});
  };
  const Pieces k(per_query_head(input.k), 2, chunks_);
  const Pieces v(per_query_head(input.v), 2, chunks_);
  std::vector<std::int64_t> rows;
  for (const RowChunk& chunk : chunks_) rows.push_back(chunk.end - chunk.begin);
  const std::vector<at::Tensor> queries = q.split_with_sizes(rows, 2);
  std::vector<at::Tensor> parts;
  for (std::size_t i = 0; i < chunks_.size(); ++i) {
    parts.push_back(at::scaled_dot_product_attention(queries[i], k.columns(chunks_[i]),
                                                     v.columns(chunks_[i]), masks_[i], 0.0, false,
                                                     input.scale));
  }
  const at::Tensor z = parts.size() == 1 ? parts.front() : at::cat(parts, 2);
  return z.to(input.q.scalar_type());
}

}  // namespace blockscope
