// The operators of ops.h and row_ops.h in terms of torch operators, for devices without kernels.
// They are slower and store the scores of a sequence. They run on any device; the tests compare
// them with the CPU's kernels. Arguments and results are those of the two headers; the arguments
// are not checked again. Lengths and masks stay on the CPU. split_attention keeps no weights. The
// operators of row_ops.h are differentiable, for training; their results may have the strides of x.
#pragma once

#include "kernels/ops.h"
#include "kernels/row_ops.h"

namespace blockscope::fallback {

#define BLOCKSCOPE_FALLBACK(name) decltype(blockscope::name) name;
BLOCKSCOPE_OPERATORS(BLOCKSCOPE_FALLBACK)
BLOCKSCOPE_ROW_OPERATORS(BLOCKSCOPE_FALLBACK)
#undef BLOCKSCOPE_FALLBACK
TopKSets topk_sets(const at::Tensor& q, const at::Tensor& k_ext, const at::Tensor& ext_len,
                   const at::Tensor& lse, int64_t k, double scale, bool with_tokens);

// What fill_spread has to know about the keys that heads read; undefined: all of them.
struct SpreadKeys {
  at::Tensor index = {}, dense = {};  // as for gather_attention
  at::Tensor reused = {};             // reuse_attention's mask
  at::Tensor rows = {};               // [T] bool: the queries that count; undefined: all
  bool causal = false;                // a query sees internal keys only up to its own place
  int64_t window = 0;                 // and its newest keys alone, its own included; 0: all. The
                                      // internal keys are no more than these
};
// Fills `spread` for q, k_ext and k_in of any device.
void fill_spread(const at::Tensor& q, const at::Tensor& k_ext, const at::Tensor& ext_len,
                 const at::Tensor& k_in, double scale, const SpreadKeys& keys,
                 WeightSpread& spread);

}  // namespace blockscope::fallback
