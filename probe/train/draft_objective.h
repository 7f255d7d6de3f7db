// A draft in training beside its target, whose weights stay as they are: embedding, LM head and
// hidden states.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "probe/draft/draft_model.h"
#include "probe/model/block_diffusion_model.h"
#include "probe/train/training_batch.h"

namespace blockscope {

/// The config of a draft for a target: layers, feed-forward size and heads from `shapes`, hidden
/// size, vocabulary, norm and RoPE from the target; z-lab's layout. `target_layers`: whose outputs
/// it reads; empty: default_target_layers(). Throws UsageError for a target that isn't a dense
/// qwen3 without scaled RoPE, and for layers it doesn't have.
ModelConfig draft_config_for(const Checkpoint& target, const ModelConfig& shapes,
                             std::int64_t block_size, std::int64_t mask_token_id,
                             const std::vector<std::int64_t>& target_layers);

class DraftObjective {
 public:
  DraftObjective(const Checkpoint& target, at::Device device);

  /// Logits [M, vocab_size] of the loss rows of a make_draft_batch(), with gradients for the
  /// draft's weights alone. `attention`: the dtype of its attention.
  at::Tensor forward(const DraftModel& draft, const TrainingBatch& batch,
                     at::ScalarType attention) const;

 private:
  BlockDiffusionModel target_;
};

}  // namespace blockscope
