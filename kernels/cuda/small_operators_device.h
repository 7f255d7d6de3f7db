// The operators of ops.h but split_attention and its kin on a device: checks, outputs and
// workspace. Arguments, results and errors are those of ops.h; lengths stay on the CPU.
#pragma once

#include "kernels/cuda/device_kernels.h"
#include "kernels/ops.h"

namespace blockscope {

at::Tensor prefill_attention_on(const DeviceQueue& queue, const at::Tensor& q, const at::Tensor& k,
                                const at::Tensor& v, const at::Tensor& len, int64_t block_length,
                                double scale, int64_t query_start = 0);

MergedAttention merge_attention_on(const DeviceQueue& queue, const std::vector<at::Tensor>& outputs,
                                   const std::vector<at::Tensor>& lses);

TopK block_topk_on(const DeviceQueue& queue, const at::Tensor& q, const at::Tensor& k_ext,
                   const at::Tensor& ext_len, const at::Tensor& lse, int64_t k, double scale);
TokenTopK token_topk_on(const DeviceQueue& queue, const at::Tensor& q, const at::Tensor& k_ext,
                        const at::Tensor& ext_len, const at::Tensor& lse, int64_t k, double scale);
// Reads the keys for the block's set and for the tokens' sets.
TopKSets topk_sets_on(const DeviceQueue& queue, const at::Tensor& q, const at::Tensor& k_ext,
                      const at::Tensor& ext_len, const at::Tensor& lse, int64_t k, double scale,
                      bool with_tokens);

PageBounds page_bounds_on(const DeviceQueue& queue, const at::Tensor& k_ext,
                          const at::Tensor& ext_len, int64_t page_size);
at::Tensor page_scores_on(const DeviceQueue& queue, const at::Tensor& q, const PageBounds& bounds,
                          const at::Tensor& ext_len, int64_t page_size);
at::Tensor token_page_scores_on(const DeviceQueue& queue, const at::Tensor& q,
                                const PageBounds& bounds, const at::Tensor& ext_len,
                                int64_t page_size);

at::Tensor cross_step_similarity_on(const DeviceQueue& queue, const at::Tensor& a,
                                    const at::Tensor& b);

}  // namespace blockscope
