// What a decoder shows to an observer (the recorder, the evaluation). Observers get read-only views
// and never steer: the tokens are bit-identical with and without one.
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
/// context.sequences[s]; fused commits (context.commits) have no entry. Rows of q and of the parts
/// hold NaN where the pass did not compute them (SequencePass::computed).
struct AttentionView {
  const PassContext& context;
  const AttentionInput& input;          // q, k, v of the block, after QK-norm and RoPE
  const ExternalKeys& external;         // the committed prefix
  const AttentionParts& used;           // what the policy used
  const AttentionParts* exact;          // the exact values: `used` itself if the step is exact, the
                                        // shadow's under --shadow, else nullptr (unknown)
  const at::Tensor* rows = nullptr;     // [R] int64, ascending: the block's positions that the pass
                                        // computed at this layer; the others hold NaN; nullptr: all
  const at::Tensor* present = nullptr;  // [B] bool, instead of `rows` if only a device knows which
                                        // positions were computed; may be all false
  const WeightSpread* spread = nullptr;  // filled, of `exact` if it is known, else of `used`;
                                         // nullptr: not asked for, or not known
};

/// How far the layers of a cached pass are from a pass over the whole canvas with the same input
/// and no cache: [num_layers] float32, by model layer. Each is a mean over positions of the cosine
/// of two vectors with their heads concatenated; NaN without any position.
struct Staleness {
  at::Tensor key;        // canvas entries that the pass did not write
  at::Tensor value;      // the same entries
  at::Tensor attention;  // output before the projection, of the block's rows that it computed
};

/// Keys and values that become part of a sequence's prefix: T positions from `start`. Bidirectional
/// models: shown after a pass that wrote keys outside the block, from the first to the last
/// position that any layer wrote, the block included.
struct CommittedKeys {
  int64_t sequence = 0;
  int64_t layer = 0;
  int64_t start = 0;
  at::Tensor key;    // [K, T, D]
  at::Tensor value;  // [K, T, D]
};

/// The first token of a block, known from the pass that stored the keys before the block.
struct NextToken {
  int64_t token = 0;
  float confidence = 0.0F;  // its softmax probability
  int64_t position = -1;    // absolute; -1: the first one after the stored positions
};

/// What a draft's selector chose from (DFlash 2), for each block position: C candidates by falling
/// probability. Entries of position 0 are -1 and NaN.
struct DraftCandidates {
  std::vector<int64_t> token;      // [B * C]
  std::vector<float> probability;  // [B * C] under the draft, before the selector
  std::vector<float> score;        // [B * C] the selector's, after the token that it chose before
  std::vector<int64_t> chosen;     // [B] the largest score's candidate
  std::vector<int64_t> target;     // [B] the candidate that the target chose; -1: none of them
};

/// How a target judged a draft's block (DFlash). Entry i of [B] is about the block's position i.
/// Position 0 was certain before, so its entries are -1 and NaN.
struct DraftVerdict {
  int64_t accepted = 0;               // number of accepted drafted tokens, from position 1 on
  std::vector<int64_t> token;         // the drafted token
  std::vector<float> confidence;      // its probability under the draft
  std::vector<int64_t> target_token;  // the target's choice
  std::vector<int64_t>
      target_rank_under_draft;  // from 0; -1: the target's choice is not in the draft's vocabulary
  std::vector<float> target_probability_under_draft;  // NaN if it is not in that vocabulary
  std::vector<int64_t> drafted_rank_under_target;     // from 0
  std::vector<float> drafted_probability_under_target;
  std::vector<float> draft_entropy, target_entropy;  // of the whole distributions, in nats
  std::optional<DraftCandidates> candidates = {};    // of a draft with a selector
};

/// A token that a step took back: its position in the block is a mask again.
struct Revocation {
  int64_t position = 0;  // in the block
  int64_t token = 0;
  float confidence = 0.0F;  // WINO: the probability at which the token was masked again; an edit:
                            // the probability of [MASK]; NaN in a replay
};

/// A random token at a position of a canvas.
struct Noise {
  int64_t position = 0;  // absolute
  int64_t token = 0;
};

/// What a denoising step decided for one sequence, in positions of its block.
struct StepDecision {
  BlockPrediction prediction;        // [B] each
  std::vector<int64_t> transferred;  // positions in the block that took a token, ascending
  std::vector<int64_t> edited;       // those of them that held another token before, ascending
  std::vector<Revocation> revoked;   // by position; none of them was transferred at this step
  std::vector<Noise> noise{};        // of the next step's canvas; prefill and commit: of the first
  int64_t decided_before = 0;        // canvas: changed positions that were accepted before
  bool ends_canvas = false;          // the canvas takes no further step
  std::vector<int64_t> selected;     // chosen positions, also if the token was [MASK] itself
  int64_t kept_masks = 0;            // number of chosen positions whose token was [MASK]
  float sure_left = 0.0F;            // SequencePass::sure_left of the next step
  std::vector<int64_t> inserted;     // positions, 0 to B, before which a mask was then inserted
  std::vector<int64_t> deleted;      // and those that then went, counted after the insertions
  int64_t deleted_tokens = 0;        // the part of `deleted` that held no mask
  std::optional<NextToken> next;     // for a commit or the last prefill, with sub-blocks: the token
                                     // after the stored positions
  std::optional<DraftVerdict> verdict = {};  // for a draft's pass

  /// The number of tokens that the step adds: decided ones minus those that it removed.
  int64_t net_tokens() const {
    return std::ssize(transferred) - std::ssize(edited) - std::ssize(revoked) - deleted_tokens -
           decided_before;
  }
};

struct PassResult {
  const PassContext& context;
  int64_t length = 0;        // T, positions per sequence in this pass
  int64_t start = 0;         // absolute first position
  double computed_rows = 0;  // number of positions whose attention and FFN were computed: mean over
                             // layers, sum over sequences
  int64_t pass_ns = 0;       // wall time of the pass without the observer's own work
  int64_t attention_ns = 0;  // the part of pass_ns in the attention of all layers, and in waiting
                             // for work that the policy does in parallel
  std::vector<StepDecision> decisions =
      {};                               // [S]; commit: only `next` is set; prefill: none, or [1]
  std::vector<LayerWork> work = {};     // by model layer, for a bidirectional model's one sequence
  std::vector<int64_t> rows_read = {};  // [S] AttentionPolicy::rows_read; prefill: empty
  int64_t deciding_ns = 0;  // the part of pass_ns from logits to tokens: sampling, the strategy
};

/// Largest number of bytes of attention weights kept for the observer; above it they are
/// recomputed. Weights that do not fit a CPU's caches take as long to read as to recompute.
constexpr int64_t kMostKeptWeightBytes = int64_t{64} << 20;

/// The decoder never writes to a tensor after it was shown. Exceptions are keys and values of the
/// block and the prefix, which may lie in a cache. References are valid during the call only.
class DecodeObserver {
 public:
  virtual ~DecodeObserver() = default;
  /// Whether the observer needs the layers of this pass. If not, on_attention, on_hidden and
  /// on_router need not be called.
  virtual bool looks_inside(const PassContext& /*context*/) const { return true; }
  /// Whether on_attention of this layer will read the exact parts' weights.
  virtual bool wants_weights(const PassContext& /*context*/, int64_t /*layer*/) const {
    return false;
  }
  /// The ranges of external keys (WeightSpread::ends) that on_attention of this layer will read the
  /// weights of; empty: none.
  virtual std::vector<std::vector<int64_t>> key_ranges(const PassContext& /*context*/,
                                                       int64_t /*layer*/) const {
    return {};
  }
  /// Whether the observer needs predictions of decided positions. If not, the LM head may leave
  /// them out. Then on_masked_logits is called in place of on_logits, and a decision has -1 and NaN
  /// at these positions.
  virtual bool wants_every_prediction() const { return true; }
  /// Whether on_logits or on_masked_logits does anything.
  virtual bool wants_logits() const { return wants_every_prediction(); }
  virtual void on_attention(const AttentionView& /*view*/) {}
  /// The residual stream that enters a layer, [S, B, hidden_size]; denoising and commit passes.
  virtual void on_hidden(const PassContext& /*context*/, int64_t /*layer*/,
                         const at::Tensor& /*hidden*/) {}
  /// The experts that a layer's router chose, [S, B, per_token]; denoising and commit passes.
  virtual void on_router(const PassContext& /*context*/, int64_t /*layer*/,
                         const RouterChoice& /*choice*/) {}
  /// Called under --shadow, after a bidirectional model's pass.
  virtual void on_staleness(const PassContext& /*context*/, const Staleness& /*of_layers*/) {}
  virtual void on_committed_keys(const CommittedKeys& /*keys*/) {}
  /// logits [S', B, V]; entry i belongs to context.sequences[slots[i]] (denoising ones only).
  virtual void on_logits(const PassContext& /*context*/, const std::vector<int64_t>& /*slots*/,
                         const at::Tensor& /*logits*/) {}
  /// The same for masked positions alone: logits [R, V], slot by slot, of the positions that are
  /// true in `predicted` ([B] per entry of `slots`).
  virtual void on_masked_logits(const PassContext& /*context*/,
                                const std::vector<int64_t>& /*slots*/,
                                const std::vector<std::vector<bool>>& /*predicted*/,
                                const at::Tensor& /*logits*/) {}
  virtual void on_pass(const PassResult& /*result*/) {}
  /// A finished sequence left the batch: the last slot moves to `slot`.
  virtual void on_remove(int64_t /*slot*/) {}
};

}  // namespace blockscope
