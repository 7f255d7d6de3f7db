// Included by the compiler before a test of ops.h's or row_ops.h's operators (-include): the names
// that the test calls then mean the device's operators, executed by the emulator. So GPU kernels
// must pass the CPU's tests.
#pragma once

#include "kernels/cuda/device_operators.h"
#include "kernels/device/emulator.h"
#include "kernels/ops.h"
#include "tests/support/emulated_launches.h"

namespace blockscope::testing {

inline const DeviceQueue& emulator() {
  static const DeviceQueue queue{emulated_launches(), [](const auto& call) { call(nullptr); },
                                 nullptr, nullptr, plain_prefix};
  return queue;
}

#if defined(BLOCKSCOPE_EMULATED_OPERATORS)
#define BLOCKSCOPE_EMULATED(name)               \
  template <class... Arguments>                 \
  auto name(const Arguments&... arguments) {    \
    return name##_on(emulator(), arguments...); \
  }
BLOCKSCOPE_EMULATED(unselected_attention)
BLOCKSCOPE_EMULATED(block_topk)
BLOCKSCOPE_EMULATED(token_topk)
BLOCKSCOPE_EMULATED(topk_sets)
BLOCKSCOPE_EMULATED(page_bounds)
BLOCKSCOPE_EMULATED(cross_step_similarity)
BLOCKSCOPE_EMULATED(rms_norm_rows)
BLOCKSCOPE_EMULATED(add_rms_norm_rows)
BLOCKSCOPE_EMULATED(silu_multiply)
#undef BLOCKSCOPE_EMULATED

// Called with fewer arguments than they have, or with braces around them: a template takes neither.
inline SplitAttention split_attention(const at::Tensor& q, const at::Tensor& k_ext,
                                      const at::Tensor& v_ext, const at::Tensor& ext_len,
                                      const at::Tensor& k_in, const at::Tensor& v_in, double scale,
                                      ExternalWeights* kept = nullptr,
                                      WeightSpread* spread = nullptr) {
  return split_attention_on(emulator(), q, k_ext, v_ext, ext_len, k_in, v_in, scale, kept, spread);
}
inline SourcedAttention reuse_attention(const at::Tensor& q, const at::Tensor& k_ext,
                                        const at::Tensor& v_ext, const at::Tensor& ext_len,
                                        const at::Tensor& k_in, const at::Tensor& v_in,
                                        const at::Tensor& cached_external,
                                        const at::Tensor& cached_lse, const at::Tensor& reuse_mask,
                                        double scale, WeightSpread* spread = nullptr,
                                        const at::Tensor& refresh_rows = {}) {
  return reuse_attention_on(emulator(), q, k_ext, v_ext, ext_len, k_in, v_in, cached_external,
                            cached_lse, reuse_mask, scale, spread, refresh_rows);
}
inline SourcedAttention gather_attention(const at::Tensor& q, const at::Tensor& k_ext,
                                         const at::Tensor& v_ext, const at::Tensor& ext_len,
                                         const at::Tensor& index, const at::Tensor& k_in,
                                         const at::Tensor& v_in, double scale,
                                         const at::Tensor& dense = {},
                                         const at::Tensor& residual = {},
                                         const at::Tensor& lse_residual = {},
                                         WeightSpread* spread = nullptr) {
  return gather_attention_on(emulator(), q, k_ext, v_ext, ext_len, index, k_in, v_in, scale, dense,
                             residual, lse_residual, spread);
}
inline at::Tensor prefill_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                    const at::Tensor& len, int64_t block_length, double scale,
                                    int64_t query_start = 0) {
  return prefill_attention_on(emulator(), q, k, v, len, block_length, scale, query_start);
}
inline MergedAttention merge_attention(const std::vector<at::Tensor>& outputs,
                                       const std::vector<at::Tensor>& lses) {
  return merge_attention_on(emulator(), outputs, lses);
}
inline std::vector<at::Tensor> norm_rotate_rows(const std::vector<HeadsToRotate>& heads,
                                                const at::Tensor& cos, const at::Tensor& sin) {
  return norm_rotate_rows_on(emulator(), heads, cos, sin);
}
inline at::Tensor rotate_rows(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  return norm_rotate_rows({{x, {}, 0.0, false}}, cos, sin).front();
}
// A PageBounds would bring in blockscope's own functions, so these take other names.
inline at::Tensor emulated_page_scores(const at::Tensor& q, const PageBounds& bounds,
                                       const at::Tensor& ext_len, int64_t page_size) {
  return page_scores_on(emulator(), q, bounds, ext_len, page_size);
}
inline at::Tensor emulated_token_page_scores(const at::Tensor& q, const PageBounds& bounds,
                                             const at::Tensor& ext_len, int64_t page_size) {
  return token_page_scores_on(emulator(), q, bounds, ext_len, page_size);
}
#define page_scores emulated_page_scores
#define token_page_scores emulated_token_page_scores
#endif

}  // namespace blockscope::testing
