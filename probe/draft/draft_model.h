// A DFlash or DFlash 2 draft (arXiv 2602.06036; `dflash/model.py`). It consists of Qwen3 layers.
// Their queries and internal keys come from the drafted block; their external keys are projections
// of the target's hidden states. A draft without its own vocabulary uses the target's embedding and
// LM head.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "probe/checkpoint/checkpoint.h"
#include "probe/draft/candidate_selector.h"
#include "probe/model/block_diffusion_model.h"

namespace blockscope {

/// The tokens of a draft for L slots of S sequences.
struct DraftedTokens {
  std::vector<int64_t> token;        // [S * L] ids of the target
  std::vector<float> confidence;     // [S * L] under the draft; empty with a selector
  at::Tensor head;                   // [S, L, draft vocabulary], see DraftModel::scaled
  std::optional<SelectorPath> path;  // of a draft with a selector
};

class DraftModel {
 public:
  /// Loads a checkpoint whose config describes a draft. Throws CheckpointError if d2t doesn't map
  /// into the vocabulary.
  static DraftModel load(const Checkpoint& checkpoint, at::ScalarType dtype,
                         at::Device device = at::kCPU);
  /// Makes a draft from a model that holds its weights, which are used unchanged. The draft has its
  /// target's vocabulary.
  explicit DraftModel(BlockDiffusionModel body);
  DraftModel packed() &&;

  const ModelConfig& config() const { return body_.config(); }
  const DraftConfig& draft() const { return *body_.config().draft; }
  const BlockDiffusionModel& body() const { return body_; }
  int64_t weight_bytes() const { return body_.weight_bytes(); }

  /// Throws a CheckpointError that names the difference if the draft was not made for this target.
  /// Compares hidden size, vocabulary, number of layers, and the digest, if the draft names one.
  void check_target(const ModelConfig& target, const std::string& digest) const;

  /// taps [1, T, layers * hidden_size], the target's hidden states after the draft's target layers
  /// -> context features [1, T, hidden_size]. Every layer of the draft projects its external keys
  /// and values from them.
  at::Tensor context_features(const at::Tensor& taps) const;

  /// tokens int64 [1, B] of the target's vocabulary -> [1, B, hidden_size].
  at::Tensor embed(const at::Tensor& tokens, const BlockDiffusionModel& target) const;
  /// The rows of a pass that drafts for a round of `round` positions: a certain token and masks.
  int64_t rows_of(int64_t round) const { return round - (draft().from_anchor ? 1 : 0); }
  /// hidden [S, rows, hidden_size] of such a pass, certain [S] int64 -> the tokens for the block
  /// positions from 1 on: the most probable ones, or those of the selector.
  DraftedTokens choose(const at::Tensor& hidden, const at::Tensor& certain,
                       const BlockDiffusionModel& target) const;
  /// The LM head's output -> the draft's logits, with the multiplier and the soft cap. Both keep
  /// the order of the tokens.
  at::Tensor scaled(const at::Tensor& head) const;
  /// Entry i is the target's id of the draft's token i, int64 [draft vocabulary] on the host.
  /// Undefined: the ids are the same.
  const at::Tensor& target_ids() const { return target_ids_; }

  /// The same draft for sequences of up to `length` positions (BlockDiffusionModel).
  DraftModel for_longest_sequence(int64_t length) const;

 private:
  DraftModel(BlockDiffusionModel body, Linear fc, RmsNorm hidden_norm, CandidateSelector selector,
             at::Tensor target_ids);

  BlockDiffusionModel body_;
  Linear fc_;            // [hidden_size, layers * hidden_size]
  RmsNorm hidden_norm_;  // over hidden_size
  CandidateSelector selector_;
  at::Tensor target_ids_;
};

}  // namespace blockscope
