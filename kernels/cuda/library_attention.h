// The prefix's attention through a kernel of torch, where that is faster than ours. It gives the
// external pair with A_out in the type of q (16 bits); ours accumulates A_out in float32.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/shape_check.h"

namespace blockscope {

struct PrefixPair {
  at::Tensor output;  // [S, K, R, D] dtype of q: attention over all keys
  at::Tensor lse;     // [S, K, R] float32: natural logarithm
};

// q [S, K, R, D], with the query heads of a KV head folded into rows; k, v [S, K, N, D]. Every row
// sees every key.
using PrefixAttention = PrefixPair (*)(const at::Tensor& q, const at::Tensor& k,
                                       const at::Tensor& v, double scale);

// torch's flash attention on the current stream of q's device, which is a GPU.
PrefixPair flash_prefix(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                        double scale);

// Adjacent KV heads, which the library reads in one call.
struct HeadRun {
  int64_t first = 0;
  int64_t count = 0;
  bool operator==(const HeadRun&) const = default;
};

// The KV heads of which at least one query head does not reuse, in as few runs as possible. Nothing
// if the sequences read different KV heads. reuse: [S, H].
std::optional<std::vector<HeadRun>> reading_runs(const std::vector<bool>& reuse,
                                                 const AttentionSizes& sizes);

// Calls `prefix` for each run. The rows of other heads are not written. Undefined without a run.
PrefixPair prefix_of_runs(PrefixAttention prefix, const at::Tensor& q, const at::Tensor& k,
                          const at::Tensor& v, double scale, const std::vector<HeadRun>& runs);

// The same values where the library's 16-byte loads find them: a copy of rows that are not aligned.
at::Tensor aligned_for_library(const at::Tensor& rows);

// Whether the library's kernel can read these keys, and is faster by the table in
// library_attention.cpp, for each run alone. Without a run, whether it is for all heads: then the
// join gives the same bits as the steps that read. The environment variable BLOCKSCOPE_SPLIT=own or
// =library overrides the table, for measurements. lengths: external keys of each sequence.
bool library_reads(const AttentionSizes& sizes, const std::vector<int64_t>& lengths,
                   int64_t internal_keys, const std::vector<HeadRun>& runs, const at::Tensor& k_ext,
                   const at::Tensor& v_ext);

}  // namespace blockscope
