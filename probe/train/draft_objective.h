// The training objective of a draft. It uses the embedding, LM head and hidden states of its
// target, whose weights do not change.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <vector>

#include "probe/draft/draft_model.h"
#include "probe/model/block_diffusion_model.h"
#include "probe/train/training_batch.h"

namespace blockscope {

/// Throws UsageError for a target that is no folder, or that isn't a dense qwen3 without scaled
/// RoPE. Reads its config only.
void check_draft_target(const std::filesystem::path& folder);

/// The config of a draft for a target, in z-lab's layout. Layers, feed-forward size and heads come
/// from `shapes`; hidden size, vocabulary, norm and RoPE come from the target. The draft reads the
/// outputs of `target_layers`; empty: default_target_layers(). Throws UsageError for a target that
/// isn't a dense qwen3 without scaled RoPE, and for layers that it doesn't have.
ModelConfig draft_config_for(const Checkpoint& target, const ModelConfig& shapes,
                             std::int64_t block_size, std::int64_t mask_token_id,
                             const std::vector<std::int64_t>& target_layers);

class DraftObjective {
 public:
  DraftObjective(const Checkpoint& target, at::Device device);

  /// Logits [M, vocab_size] of the loss rows of a make_draft_batch(). Only the draft's weights get
  /// gradients. `attention`: the dtype of its attention.
  at::Tensor forward(const DraftModel& draft, const TrainingBatch& batch,
                     at::ScalarType attention) const;

 private:
  BlockDiffusionModel target_;
};

}  // namespace blockscope
