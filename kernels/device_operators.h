// The operators of ops.h on a device other than the CPU. ops.h's functions look at the device of
// their first argument and call through this table, which the device's library fills when it is
// loaded: libblockscope_kernels_cuda.so for CUDA. What it leaves out, and a device without such a
// library, take the chains of tensor operators. Who stays on the CPU links and loads nothing of it.
#pragma once

#include "kernels/chain_operators.h"
#include "kernels/ops.h"

namespace blockscope {

struct DeviceOperators {
  decltype(&chain::split_attention) split_attention = chain::split_attention;
  decltype(&chain::reuse_attention) reuse_attention = chain::reuse_attention;
  decltype(&chain::gather_attention) gather_attention = chain::gather_attention;
  decltype(&chain::unselected_attention) unselected_attention = chain::unselected_attention;
  decltype(&chain::prefill_attention) prefill_attention = chain::prefill_attention;
  decltype(&chain::merge_attention) merge_attention = chain::merge_attention;
  decltype(&chain::topk_sets) topk_sets = chain::topk_sets;  // and block_topk, token_topk
  decltype(&chain::page_bounds) page_bounds = chain::page_bounds;
  decltype(&chain::page_scores) page_scores = chain::page_scores;
  decltype(&chain::cross_step_similarity) cross_step_similarity = chain::cross_step_similarity;
};

void set_cuda_operators(const DeviceOperators& operators);

// Null where `tensor` is undefined or on the CPU.
const DeviceOperators* operators_of(const at::Tensor& tensor);

}  // namespace blockscope
