// The operators of ops.h and row_ops.h made of torch operators, for devices, and for
// operators of a device, that have no kernel: slower, and the scores of a sequence are stored. On
// any device; the CPU's kernels stand beside them in the tests. Arguments and results are those of
// the two headers; they are not checked again. Lengths and masks stay on the CPU; split_attention
// keeps no weights. Those of row_ops.h are differentiable, which is what training takes them for;
// their results may lie as x does.
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

}  // namespace blockscope::fallback
