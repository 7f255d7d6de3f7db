// The operators of ops.h and row_ops.h made of torch operators, for devices, and for
// operators of a device, that have no kernel: slower, and the scores of a sequence are stored. On
// any device; the CPU's kernels stand beside them in the tests. Arguments and results are those of
// the two headers; they are not checked again. Lengths and masks stay on the CPU. Those of
// row_ops.h are differentiable, which is what training takes them for; their results may lie as x
// does.
#pragma once

#include "kernels/ops.h"
#include "kernels/row_ops.h"

namespace blockscope::fallback {

SplitAttention split_attention(const at::Tensor& q, const at::Tensor& k_ext,
                               const at::Tensor& v_ext, const at::Tensor& ext_len,
                               const at::Tensor& k_in, const at::Tensor& v_in, double scale);
ReuseAttention reuse_attention(const at::Tensor& q, const at::Tensor& k_ext,
                               const at::Tensor& v_ext, const at::Tensor& ext_len,
                               const at::Tensor& k_in, const at::Tensor& v_in,
                               const at::Tensor& cached_external, const at::Tensor& cached_lse,
                               const at::Tensor& reuse_mask, double scale);
GatherAttention gather_attention(const at::Tensor& q, const at::Tensor& k_ext,
                                 const at::Tensor& v_ext, const at::Tensor& ext_len,
                                 const at::Tensor& index, const at::Tensor& k_in,
                                 const at::Tensor& v_in, double scale, const at::Tensor& dense,
                                 const at::Tensor& residual, const at::Tensor& lse_residual);
PartialAttention unselected_attention(const at::Tensor& q, const at::Tensor& k_ext,
                                      const at::Tensor& v_ext, const at::Tensor& ext_len,
                                      const at::Tensor& index, double scale);
at::Tensor prefill_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                             const at::Tensor& len, int64_t block_length, double scale,
                             int64_t query_start);
MergedAttention merge_attention(const std::vector<at::Tensor>& outputs,
                                const std::vector<at::Tensor>& lses);
TopKSets topk_sets(const at::Tensor& q, const at::Tensor& k_ext, const at::Tensor& ext_len,
                   const at::Tensor& lse, int64_t k, double scale, bool with_tokens);
PageBounds page_bounds(const at::Tensor& k_ext, const at::Tensor& ext_len, int64_t page_size);
/// [S, K, P], or [S, K, T, P] for each token alone.
at::Tensor page_scores(const at::Tensor& q, const PageBounds& bounds, const at::Tensor& ext_len,
                       int64_t page_size, bool per_token);
at::Tensor cross_step_similarity(const at::Tensor& a, const at::Tensor& b);

at::Tensor rms_norm_rows(const at::Tensor& x, const at::Tensor& weight, double eps,
                         bool weight_first);
SumAndNorm add_rms_norm_rows(const at::Tensor& x, const at::Tensor& y, const at::Tensor& weight,
                             double eps, bool weight_first);
std::vector<at::Tensor> norm_rotate_rows(const std::vector<HeadsToRotate>& heads,
                                         const at::Tensor& cos, const at::Tensor& sin);
at::Tensor silu_multiply(const at::Tensor& gate, const at::Tensor& up);

}  // namespace blockscope::fallback
