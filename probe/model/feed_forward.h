// The part of a layer behind the attention: SwiGLU, or a router and the experts it chooses.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

#include "probe/checkpoint/moe_config.h"
#include "probe/model/linear.h"
#include "probe/model/router_choice.h"

namespace blockscope {

/// silu(x gate^T) * (x up^T), times down^T.
struct SwiGlu {
  Linear gate, up, down;
  PackedMatrix gate_up = {};  // packed for our kernels, instead of gate and up
  Linear gate_and_up = {};    // on a device, of the same weights; undefined without

  at::Tensor operator()(const at::Tensor& x) const;
  void pack();  // its linear layers
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
  Linear router;    // [E, hidden]; of sigmoid scores float32
  at::Tensor bias;  // [E] float32, of sigmoid scores
  std::vector<SwiGlu> experts;
  std::optional<SwiGlu> shared;

  at::Tensor operator()(const at::Tensor& x, const RouterListener& heard) const;
  struct Routed {
    RouterChoice choice;  // [R, per_token], where the rows are
    at::Tensor expert;    // the same choice on the host, which groups rows by it
  };
  /// rows [R, hidden]; waits once for a device.
  Routed route(const at::Tensor& rows) const;
  void pack();  // its experts' linear layers; the router's scores stay ATen's

 private:
  at::Tensor expert_outputs(const at::Tensor& input, const std::vector<int64_t>& rows) const;
};

/// What a layer has behind its attention.
using FeedForward = std::variant<SwiGlu, ExpertMixture>;

/// x [S, T, hidden] -> the same shape; the listener hears of a router that was asked.
at::Tensor apply(const FeedForward& feed_forward, const at::Tensor& x, const RouterListener& heard);

}  // namespace blockscope
