// The part of a layer behind the attention: SwiGLU, or a router and the experts it chooses.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "probe/checkpoint/moe_config.h"

namespace blockscope {

/// What a layer's router decided, per_token experts a row.
struct RouterChoice {
  at::Tensor expert;  // [..., per_token] int64, by falling score
  at::Tensor weight;  // [..., per_token] float32, that its expert's output is multiplied by
};
using RouterListener = std::function<void(const RouterChoice&)>;

/// x [S, T, hidden] -> the same shape; the listener hears of every router that was asked.
using FeedForward = std::function<at::Tensor(const at::Tensor& x, const RouterListener& heard)>;

/// silu(x gate^T) * (x up^T), times down^T.
struct SwiGlu {
  at::Tensor gate, up, down;  // [out, in]

  at::Tensor operator()(const at::Tensor& x) const;
};

/// A router's experts. Scores in float32:
///   Qwen3-MoE (transformers, `Qwen3MoeSparseMoeBlock`; SDAR-MoE's is the same): softmax over all
///   experts, the largest per_token of them, optionally scaled to sum to 1;
///   LLaDA2 (dFactory, `modeling_llada2_moe.py:LLaDA2MoeGate`): sigmoid. Experts are chosen by
///   score + bias from the groups whose two best sum highest; weights are the scores without bias,
///   scaled to sum to 1 (+ 1e-20), times `scaling`. What the shared expert makes is added as it is.
/// Only chosen experts are computed, each once for all rows that chose it, and summed by weight in
/// x's dtype (LLaDA2: float32). Equal scores: the lower index.
struct ExpertMixture {
  MoeConfig config;
  at::Tensor router;  // [E, hidden]
  at::Tensor bias;    // [E] float32, of sigmoid scores
  std::vector<SwiGlu> experts;
  std::optional<SwiGlu> shared;

  at::Tensor operator()(const at::Tensor& x, const RouterListener& heard) const;
  /// rows [R, hidden] -> [R, per_token].
  RouterChoice route(const at::Tensor& rows) const;
};

}  // namespace blockscope
