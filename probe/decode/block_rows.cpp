#include "probe/decode/block_rows.h"

#include <ATen/ATen.h>

#include <vector>

#include "decode_record/base/nan.h"
#include "probe/model/device.h"

namespace blockscope {
namespace {

/// Copies exact parts, with every tensor over the query rows replaced.
template <class Replace>
AttentionParts replaced(const AttentionParts& parts, const Replace& replace) {
  AttentionParts whole = parts;
  for (at::Tensor* part :
       {&whole.out, &whole.external, &whole.lse_external, &whole.internal, &whole.lse_internal}) {
    *part = replace(*part);
  }
  return whole;
}

}  // namespace

at::Tensor among_block(const at::Tensor& part, int64_t dim, const at::Tensor& rows,
                       int64_t block_length, double missing) {
  if (rows.numel() == block_length) return part;
  std::vector<int64_t> shape = part.sizes().vec();
  shape[static_cast<size_t>(dim)] = block_length;
  return at::full(shape, missing, part.options())
      .index_copy_(dim, kept_on(rows, part.device()), part);
}

AttentionParts among_block(const AttentionParts& parts, const at::Tensor& rows,
                           int64_t block_length) {
  return replaced(parts, [&](const at::Tensor& part) {
    return among_block(part, 2, rows, block_length, kNaN);
  });
}

at::Tensor where_present(const at::Tensor& part, const at::Tensor& present) {
  std::vector<int64_t> shape(static_cast<size_t>(part.dim()), 1);
  shape[2] = present.numel();
  return part.masked_fill(present.logical_not().view(shape), kNaN);
}

AttentionParts where_present(const AttentionParts& parts, const at::Tensor& present) {
  return replaced(parts, [&](const at::Tensor& part) { return where_present(part, present); });
}

}  // namespace blockscope
