// What a decoder shows to whoever watches it (the recorder, the evaluation). Observers get
// read-only views and never steer: with or without one, the tokens are bit-identical.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "probe/caches/layer_work.h"
#include "probe/model/router_choice.h"
#include "probe/policies/attention_policy.h"
#include "probe/policies/pass_context.h"
#include "probe/strategies/unmasking.h"

namespace blockscope {

/// One layer of one denoising or commit pass. Entry s of the tensors belongs to
/// context.sequences[s], and fused commits (context.commits) have none; rows of q and of the parts
/// that the pass did not compute (SequencePass::computed) hold NaN.
struct AttentionView {
  const PassContext& context;
  const AttentionInput& input;       // q, k, v of the block, after QK-norm and RoPE
  const ExternalKeys& external;      // the committed prefix
  const AttentionParts& used;        // what the policy used
  const AttentionParts* exact;       // the exact values: `used` itself under `exact`, the shadow's
                                     // when --shadow computes them, nullptr when nobody knows
  const at::Tensor* rows = nullptr;  // [R] int64, ascending: the block's positions that the pass
                                     // computed at this layer; the others hold NaN; nullptr: all
  const at::Tensor* present = nullptr;  // [B] bool, instead of `rows` where a device alone knows
                                        // which they are; it may be none
};

/// How far the layers of a cached pass are from a pass over the whole canvas with the same input
/// and no cache, by model layer: [num_layers] float32. Cosines of vectors with their heads
/// concatenated, mean over positions; NaN without any.
struct Staleness {
  at::Tensor key;        // entries of the canvas that the pass did not write
  at::Tensor value;      // likewise
  at::Tensor attention;  // output before its projection, of the block's rows that it computed
};

/// Keys and values that become part of a sequence's prefix: T positions from `start`. Of a
/// bidirectional model, after the pass: from the first to the last that it wrote at any layer, with
/// the block, when it wrote any outside the block.
struct CommittedKeys {
  int64_t sequence = 0;
  int64_t layer = 0;
  int64_t start = 0;
  at::Tensor key;    // [K, T, D]
  at::Tensor value;  // [K, T, D]
};

/// The first token of a block, known from the pass that stored what stands before it.
struct NextToken {
  int64_t token = 0;
  float confidence = 0.0F;  // its softmax probability
  int64_t position = -1;    // absolute; -1: behind what the pass stored
};

/// What a target made of a draft's block (DFlash): entry i of [B] is about the block's position i,
/// the first of which was certain before and has -1 and NaN.
struct DraftVerdict {
  int64_t accepted = 0;               // drafted tokens, from position 1 on
  std::vector<int64_t> token;         // drafted
  std::vector<float> confidence;      // its probability under the draft
  std::vector<int64_t> target_token;  // the target's choice
  std::vector<int64_t>
      target_rank_under_draft;  // of it under the draft, from 0; -1: not in its vocabulary
  std::vector<float> target_probability_under_draft;  // likewise; NaN there
  std::vector<int64_t> drafted_rank_under_target;     // of the drafted token under the target
  std::vector<float> drafted_probability_under_target;
  std::vector<float> draft_entropy, target_entropy;  // of the whole distributions, in nats
};

/// A token that a step took back (WINO): its position in the block is a mask again.
struct Revocation {
  int64_t position = 0;  // in the block
  int64_t token = 0;
  float confidence = 0.0F;  // the probability that condemned it; NaN in a replay
};

/// What a denoising step decided for one sequence, in positions of its block.
struct StepDecision {
  BlockPrediction prediction;        // [B] each
  std::vector<int64_t> transferred;  // positions in the block that took a token, ascending
  std::vector<Revocation> revoked;   // by position; none of them was transferred at this step
  std::vector<int64_t> selected;     // that were chosen, also where the token was [MASK] itself
  std::optional<NextToken> next;     // of a commit or the last prefill, with sub-blocks: the token
                                     // behind what it stored
  std::optional<DraftVerdict> verdict = {};  // of a draft's pass

  /// Tokens that the step adds: those it decided, less those it took back.
  int64_t net_tokens() const { return std::ssize(transferred) - std::ssize(revoked); }
};

struct PassResult {
  const PassContext& context;
  int64_t length = 0;        // T, positions per sequence in this pass
  int64_t start = 0;         // absolute first position
  double computed_rows = 0;  // positions whose attention and FFN were computed: mean over layers,
                             // sum over sequences
  int64_t pass_ns = 0;       // wall time of the pass without the observer's own work
  int64_t attention_ns = 0;  // part of pass_ns spent in attention, all layers, and in waiting for
                             // what the policy does beside them
  std::vector<StepDecision> decisions = {};  // [S]; for commit only `next`; prefill: none, or [1]
  std::vector<LayerWork> work = {};  // by model layer, of a bidirectional model's one sequence
  int64_t deciding_ns = 0;  // part of pass_ns between logits and tokens: sampling, the strategy
};

/// Exact weights of a layer's pass are kept for the observer up to this. Beyond the caches of a
/// CPU, walking the keys a second time is as fast and takes no memory.
constexpr int64_t kMostKeptWeightBytes = int64_t{64} << 20;

/// A tensor that is shown is never written to afterwards, but for keys and values, of the block and
/// of the prefix: they may lie in a cache. References end with the call.
class DecodeObserver {
 public:
  virtual ~DecodeObserver() = default;
  /// Whether the layers of a pass over blocks are looked at. Where they are not, on_attention,
  /// on_hidden and on_router need not be called for it: it may be a graph (pass_graphs.h).
  virtual bool looks_inside(const PassContext& /*context*/) const { return true; }
  /// Whether on_attention of this layer will read the exact parts' weights.
  virtual bool wants_weights(const PassContext& /*context*/, int64_t /*layer*/) const {
    return false;
  }
  /// Whether predictions of positions that are already decided are looked at. Where they are not,
  /// the LM head may leave them out: on_masked_logits is called in place of on_logits then, and a
  /// decision has -1 and NaN there.
  virtual bool wants_every_prediction() const { return true; }
  /// Whether on_logits or on_masked_logits does anything.
  virtual bool wants_logits() const { return wants_every_prediction(); }
  virtual void on_attention(const AttentionView& /*view*/) {}
  /// Residual stream entering a layer, [S, B, hidden_size]; denoising and commit passes.
  virtual void on_hidden(const PassContext& /*context*/, int64_t /*layer*/,
                         const at::Tensor& /*hidden*/) {}
  /// What a layer's router chose, [S, B, per_token]; denoising and commit passes.
  virtual void on_router(const PassContext& /*context*/, int64_t /*layer*/,
                         const RouterChoice& /*choice*/) {}
  /// Under --shadow, after a bidirectional model's pass.
  virtual void on_staleness(const PassContext& /*context*/, const Staleness& /*of_layers*/) {}
  virtual void on_committed_keys(const CommittedKeys& /*keys*/) {}
  /// logits [S', B, V]; entry i belongs to context.sequences[slots[i]] (denoising ones only).
  virtual void on_logits(const PassContext& /*context*/, const std::vector<int64_t>& /*slots*/,
                         const at::Tensor& /*logits*/) {}
  /// The same of masked positions alone: logits [R, V], slot by slot those of the positions that
  /// are true in `predicted` ([B] per entry of `slots`).
  virtual void on_masked_logits(const PassContext& /*context*/,
                                const std::vector<int64_t>& /*slots*/,
                                const std::vector<std::vector<bool>>& /*predicted*/,
                                const at::Tensor& /*logits*/) {}
  virtual void on_pass(const PassResult& /*result*/) {}
  /// A finished sequence left the batch: the last slot moves to `slot`.
  virtual void on_remove(int64_t /*slot*/) {}
};

}  // namespace blockscope
