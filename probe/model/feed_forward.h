// The part of a layer after the attention: SwiGLU, or a router and the experts it chooses.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

#include "kernels/cuda/library_products.h"
#include "probe/checkpoint/moe_config.h"
#include "probe/model/attention_layer.h"
#include "probe/model/linear.h"
#include "probe/model/router_choice.h"

namespace blockscope {

/// activation(x gate^T) * (x up^T), times down^T.
struct GatedMlp {
  Linear gate, up, down;
  Activation activation = Activation::silu;
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
///   DiffusionGemma (transformers, `DiffusionGemmaTextRouter`): as Qwen3-MoE, normalised, then
///   times a factor for each expert.
///   LLaDA2.2 (`LLaDA2MoeGate.block_routing`): no groups. A block of `routing_block` rows keeps the
///   `expert_capacity` experts with the largest maximum of score + bias over its rows. Its rows
///   choose among these.
/// Only chosen experts are computed, each once for all rows that chose it. Outputs are summed by
/// weight in x's dtype (LLaDA2: float32). Among equal scores the lower index wins.
struct ExpertMixture {
  MoeConfig config;
  Linear router;      // [E, hidden]; float32 for sigmoid scores
  at::Tensor bias;    // [E] float32, for sigmoid scores only
  at::Tensor factor;  // [E] of the chosen weights; undefined: 1
  std::vector<GatedMlp> experts;
  std::optional<GatedMlp> shared;
  /// On a device that has one, all experts in one product (pack()); null: one after the other, by
  /// the host, which waits for the router.
  GroupedProduct grouped = nullptr;
  at::Tensor all_gate_up = {};  // for `grouped`: [E, 2 * width, hidden], views of the experts'
  at::Tensor all_down = {};     // [E, hidden, width]

  at::Tensor operator()(const at::Tensor& x, const RouterListener& heard) const {
    return routed_by(x, x, heard);
  }
  /// The experts' output for x [S, T, hidden], where the router reads `scored`, of the same shape.
  at::Tensor routed_by(const at::Tensor& x, const at::Tensor& scored,
                       const RouterListener& heard) const;
  void pack();  // packs its experts' linear layers; ATen still computes the router's scores

 private:
  struct Routed {
    RouterChoice choice;  // [R, per_token], on the rows' device
    at::Tensor expert;    // the chosen experts on the host; undefined with `grouped`
  };
  /// rows [R, hidden].
  Routed route(const at::Tensor& rows) const;
  at::Tensor grouped_outputs(const at::Tensor& rows, const at::Tensor& chosen) const;
  at::Tensor listed_outputs(const at::Tensor& rows, const at::Tensor& chosen) const;
  at::Tensor expert_outputs(const at::Tensor& input, const std::vector<int64_t>& rows) const;
};

/// DiffusionGemma's MLP and experts of the same rows, with norms around each
/// (transformers, `DiffusionGemmaDecoderTextLayer`):
///   out_norm(mlp_norm(mlp(x)) + expert_norm(experts(expert_input(residual))))
struct MlpAndExperts {
  GatedMlp mlp;
  ExpertMixture experts;
  RmsNorm mlp_norm, expert_norm, out_norm;
  RmsNorm expert_input;  // of the residual stream, for the experts
  RmsNorm router_input;  // of the residual stream, for the router

  at::Tensor operator()(const at::Tensor& x, const at::Tensor& residual,
                        const RouterListener& heard) const;
  void pack();
};

/// The part of a layer after the attention.
using FeedForward = std::variant<GatedMlp, ExpertMixture, MlpAndExperts>;

/// x [S, T, hidden], the norm of the residual stream -> the same shape. If there is a router,
/// `heard` gets its choice.
at::Tensor apply(const FeedForward& feed_forward, const at::Tensor& x, const at::Tensor& residual,
                 const RouterListener& heard);

}  // namespace blockscope
