// The loss of reuse-aware distillation (FlashBlock, arXiv 2602.05305, section 4.3; released:
// dllm/generatev2.py:multi_block_probe_teacher_student). The teacher is the frozen base model; the
// student has a LoRA part.
//
//   before    The teacher may decide some tokens, so that step 1 is a later step of its block.
//   step 1    The teacher computes all probes exactly and decides tokens. The student computes the
//             same input with gradient and keeps A_out, L_out of every layer: the pair.
//   step s    The input has the teacher's tokens of the steps before. The teacher computes it
//             exactly. The student computes it twice with gradient: from the pair of step 1, in all
//             layers and rows, and exactly ("dense").
//   loss      w_reuse KL(teacher || reuse) + w_dense KL(teacher || dense), the mean over all masked
//             positions of the steps s > 1.
//
// The released code has two steps. With more, one pair serves several reusing passes, as it does
// with a larger tau.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "probe/model/block_diffusion_model.h"
#include "probe/train/reuse_batch.h"

namespace blockscope {

struct ReuseObjective {
  std::int64_t unroll = 2;       // steps; those after the first reuse
  std::int64_t quota = 1;        // most tokens of a block that the teacher decides at a step
  std::int64_t start_steps = 0;  // the teacher's steps before the first
  double threshold = 0.9;        // it decides those above this probability, or the best one
  double reuse_weight = 0.5;     // of KL(teacher || reuse)
  double dense_weight = 0.5;     // of KL(teacher || dense)
  std::int64_t mask_token = 0;
};

/// Losses are means over `positions`, in nats.
struct ReuseLoss {
  at::Tensor loss;  // scalar with gradient; undefined if no position is left
  double reuse_kl = 0.0, dense_kl = 0.0;
  std::int64_t positions = 0;                       // masked ones of all steps after the first
  std::int64_t reuse_agrees = 0, dense_agrees = 0;  // argmax equals the teacher's
  double mean_loss(const ReuseObjective& objective) const {
    return objective.reuse_weight * reuse_kl + objective.dense_weight * dense_kl;
  }
};

/// Both models are on one device. Under NoGradGuard, `loss` has no gradient.
ReuseLoss reuse_loss(const BlockDiffusionModel& teacher, const BlockDiffusionModel& student,
                     const ReuseBatch& batch, const ReuseObjective& objective);

}  // namespace blockscope
