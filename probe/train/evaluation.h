// The trainer's own check on fresh documents of the test split: the share of answers that are right
// from the first word to the end token. It uses the training layout (many questions on one context)
// and needs no cache. `blockscope eval` measures the same with the real decoder on single prompts.
#pragma once

#include <array>
#include <cstdint>

#include "probe/train/trainer.h"

namespace blockscope {

struct EvaluationSpec {
  std::size_t context_length = 1024;
  std::size_t documents = 4;
  std::int64_t block_length = 16;  // unused for the backbone
  std::uint64_t seed = 0;
};

struct EvaluationReport {
  std::array<std::int64_t, kNumTasks> asked{};
  std::array<std::int64_t, kNumTasks> right{};
  // For drafts instead: tokens of the true answers after their first tokens, and the rounds that
  // they take.
  std::array<std::int64_t, kNumTasks> tokens{};
  std::array<std::int64_t, kNumTasks> rounds{};
  double seconds = 0.0;
};

/// Backbone: greedy decoding, computed in one pass. An answer is right if and only if every argmax
/// on the true prefix is. Diffusion: greedy decoding; each step fills the most confident masked
/// position. Draft: blocks of `block_length` on the true answers, which the target would nearly
/// always give.
EvaluationReport evaluate(const Trainer& trainer, const EvaluationSpec& spec);

}  // namespace blockscope
