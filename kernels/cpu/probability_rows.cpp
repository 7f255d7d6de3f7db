#include "kernels/cpu/probability_rows.h"

#include <c10/util/Exception.h>

#include <limits>

namespace blockscope {

TopKArguments check_topk(const char* op, const at::Tensor& q, const at::Tensor& k_ext,
                         const at::Tensor& ext_len, const at::Tensor& lse, int64_t k,
                         double scale) {
  const AttentionSizes sizes = check_attention(op, q, "k_ext", k_ext, nullptr, nullptr);
  check_cpu(op, "lse", lse, at::kFloat);
  check_shape(op, "lse", lse, q.sizes().slice(0, 3));
  TORCH_CHECK(k > 0, op, ": k: expected > 0, got ", k);
  TORCH_CHECK(sizes.external_keys <= std::numeric_limits<int32_t>::max(), op,
              ": k_ext: expected at most 2^31 - 1 keys, got ", sizes.external_keys);
  return {sizes,
          check_lengths(op, "ext_len", ext_len, sizes.sequences, sizes.external_keys),
          lse.contiguous(),
          RawView(q),
          RawView(k_ext),
          element_of(q),
          static_cast<float>(scale)};
}

}  // namespace blockscope
