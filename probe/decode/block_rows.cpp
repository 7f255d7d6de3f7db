#include "probe/decode/block_rows.h"

#include <ATen/ATen.h>

#include <limits>
#include <vector>

#include "probe/model/device.h"

namespace blockscope {

at::Tensor among_block(const at::Tensor& part, int64_t dim, const at::Tensor& rows,
                       int64_t block_length, double missing) {
  if (rows.numel() == block_length) return part;
  std::vector<int64_t> shape = part.sizes().vec();
  shape[static_cast<size_t>(dim)] = block_length;
  return at::full(shape, missing, part.options())
      .index_copy_(dim, on_device(rows, part.device()), part);
}

AttentionParts among_block(const AttentionParts& parts, const at::Tensor& rows,
                           int64_t block_length) {
  AttentionParts whole = parts;
  for (at::Tensor* part :
       {&whole.out, &whole.external, &whole.lse_external, &whole.internal, &whole.lse_internal}) {
    *part = among_block(*part, 2, rows, block_length, std::numeric_limits<double>::quiet_NaN());
  }
  return whole;
}

}  // namespace blockscope
