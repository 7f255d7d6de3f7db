// The part of a layer after the attention: SwiGLU, or a router and the experts it chooses.
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
  Linear gate_and_up = {};    // on a device, gate and up as one layer; may be undefined

  at::Tensor operator()(const at::Tensor& x) const;
  void pack();  // packs its linear layers
};

/// A router and its experts. Scores are float32:
///   Qwen3-MoE (transformers, `Qwen3MoeSparseMoeBlock`; the same in SDAR-MoE): softmax over all
///   experts. The per_token largest are chosen; optionally their weights are scaled to sum to 1.
///   LLaDA2 (dFactory, `modeling_llada2_moe.py:LLaDA2MoeGate`): sigmoid. Groups are ranked by the
///   sum of their two best values of score + bias. Experts are chosen by score + bias from the best
///   groups. Their weights are the scores without bias, scaled to sum to 1 (+ 1e-20), times
///   `scaling`. The shared expert's output is added unscaled.
///   LLaDA2.2 (`LLaDA2MoeGate.block_routing`): no groups. A block of `routing_block` rows keeps the
///   `expert_capacity` experts with the largest maximum of score + bias over its rows. Its rows
///   choose among these.
/// Only chosen experts are computed, each once for all rows that chose it. Outputs are summed by
/// weight in x's dtype (LLaDA2: float32). Among equal scores the lower index wins.
struct ExpertMixture {
  MoeConfig config;
  Linear router;    // [E, hidden]; float32 for sigmoid scores
  at::Tensor bias;  // [E] float32, for sigmoid scores only
  std::vector<SwiGlu> experts;
  std::optional<SwiGlu> shared;

  at::Tensor operator()(const at::Tensor& x, const RouterListener& heard) const;
  struct Routed {
    RouterChoice choice;  // [R, per_token], on the rows' device
    at::Tensor expert;    // the chosen experts on the host, which groups rows by them
  };
  /// rows [R, hidden]. Waits once for a device.
  Routed route(const at::Tensor& rows) const;
  void pack();  // packs its experts' linear layers; ATen still computes the router's scores

 private:
  at::Tensor expert_outputs(const at::Tensor& input, const std::vector<int64_t>& rows) const;
};

/// The part of a layer after the attention.
using FeedForward = std::variant<SwiGlu, ExpertMixture>;

/// x [S, T, hidden] -> the same shape. If there is a router, `heard` gets its choice.
at::Tensor apply(const FeedForward& feed_forward, const at::Tensor& x, const RouterListener& heard);

}  // namespace blockscope
