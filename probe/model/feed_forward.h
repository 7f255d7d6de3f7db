// The part of a layer behind the attention: SwiGLU, or a router and the experts it chooses.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace blockscope {

/// silu(x gate^T) * (x up^T), times down^T.
struct SwiGlu {
  at::Tensor gate, up, down;  // [out, in]

  at::Tensor operator()(const at::Tensor& x) const;
};

/// Qwen3-MoE's sparse block (transformers, `Qwen3MoeSparseMoeBlock`; SDAR-MoE's is the same):
/// softmax over all experts in float32, the largest `per_token` of them, optionally scaled to sum
/// to 1, then in x's dtype the weighted sum of what these experts make of the row. Only chosen
/// experts are computed, each once for all rows that chose it. Equal probabilities: either expert.
struct ExpertMixture {
  at::Tensor router;  // [E, hidden]
  std::vector<SwiGlu> experts;
  int64_t per_token = 0;
  bool normalise = false;

  at::Tensor operator()(const at::Tensor& x) const;
};

}  // namespace blockscope
