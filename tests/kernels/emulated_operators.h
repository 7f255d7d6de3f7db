// Included by the compiler before a test of ops.h's or row_ops.h's operators (-include): the names
// that the test calls then mean the device's operators, executed by the emulator. So GPU kernels
// must pass the CPU's tests.
#pragma once

#include "kernels/cuda/attention_device.h"
#include "kernels/cuda/row_ops_device.h"
#include "kernels/cuda/small_operators_device.h"
#include "kernels/device/emulator.h"
#include "kernels/ops.h"
#include "tests/support/emulated_launches.h"

namespace blockscope::testing {

inline const DeviceQueue& emulator() {
  static const DeviceQueue queue{emulated_launches(), [](const auto& call) { call(nullptr); }};
  return queue;
}

#if defined(BLOCKSCOPE_EMULATED_OPERATORS)
#define BLOCKSCOPE_EMULATED(name)               \
  template <class... Arguments>                 \
  auto name(const Arguments&... arguments) {    \
    return name##_on(emulator(), arguments...); \
  }
BLOCKSCOPE_EMULATED(split_attention)
BLOCKSCOPE_EMULATED(reuse_attention)
BLOCKSCOPE_EMULATED(gather_attention)
BLOCKSCOPE_EMULATED(unselected_attention)
BLOCKSCOPE_EMULATED(prefill_attention)
BLOCKSCOPE_EMULATED(block_topk)
BLOCKSCOPE_EMULATED(token_topk)
BLOCKSCOPE_EMULATED(topk_sets)
BLOCKSCOPE_EMULATED(page_bounds)
BLOCKSCOPE_EMULATED(cross_step_similarity)
BLOCKSCOPE_EMULATED(rms_norm_rows)
BLOCKSCOPE_EMULATED(add_rms_norm_rows)
BLOCKSCOPE_EMULATED(silu_multiply)
#undef BLOCKSCOPE_EMULATED

// Called with braces around their arguments, which a template can't take.
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
