// A DFlash draft (arXiv 2602.06036; `dflash/model.py:DFlashDraftModel`): Qwen3 layers whose
// queries, and internal keys, are of the drafted block, and whose external keys are projections of
// its target's hidden states. Without a vocabulary of its own it takes embedding and LM head from
// the target.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "probe/checkpoint/checkpoint.h"
#include "probe/model/block_diffusion_model.h"

namespace blockscope {

class DraftModel {
 public:
  /// A checkpoint whose config has a draft. Throws CheckpointError where d2t doesn't map into the
  /// vocabulary.
  static DraftModel load(const Checkpoint& checkpoint, at::ScalarType dtype,
                         at::Device device = at::kCPU);
  /// Of a model that holds the draft's weights, which are used as they are; for a draft with its
  /// target's vocabulary.
  explicit DraftModel(BlockDiffusionModel body);
  DraftModel packed() &&;

  const ModelConfig& config() const { return body_.config(); }
  const DraftConfig& draft() const { return *body_.config().draft; }
  const BlockDiffusionModel& body() const { return body_; }
  int64_t weight_bytes() const { return body_.weight_bytes(); }

  /// Throws CheckpointError naming what differs where the draft was not made for this target:
  /// hidden size, vocabulary, number of layers, and the digest, where the draft says which.
  void check_target(const ModelConfig& target, const std::string& digest) const;

  /// taps [1, T, layers * hidden_size], the target's hidden states behind the draft's target
  /// layers -> context features [1, T, hidden_size], which every layer takes keys and values of.
  at::Tensor context_features(const at::Tensor& taps) const;

  /// tokens int64 [1, B] of the target's vocabulary -> [1, B, hidden_size].
  at::Tensor embed(const at::Tensor& tokens, const BlockDiffusionModel& target) const;
  /// hidden [..., hidden_size] -> logits [..., draft vocabulary].
  at::Tensor logits(const at::Tensor& hidden, const BlockDiffusionModel& target) const;
  /// Entry i: the target's id of the draft's token i, int64 [draft vocabulary] on the host;
  /// undefined: they are the same.
  const at::Tensor& target_ids() const { return target_ids_; }

  /// The same draft for sequences of up to `length` positions (BlockDiffusionModel).
  DraftModel for_longest_sequence(int64_t length) const;

 private:
  DraftModel(BlockDiffusionModel body, Linear fc, RmsNorm hidden_norm, at::Tensor target_ids);

  BlockDiffusionModel body_;
  Linear fc_;            // [hidden_size, layers * hidden_size]
  RmsNorm hidden_norm_;  // over hidden_size
  at::Tensor target_ids_;
};

}  // namespace blockscope
