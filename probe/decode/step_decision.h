// From a denoising pass's logits to what it decides for each sequence: the strategy's choice, or
// the recorded one of a replay. Everything that chooses tokens is behind decide_tokens, so that
// every decoding loop chooses alike.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "probe/decode/decoder.h"
#include "probe/decode/watcher.h"
#include "probe/model/block_diffusion_model.h"
#include "probe/policies/pass_context.h"
#include "probe/strategies/klass.h"
#include "probe/strategies/wino.h"

namespace blockscope {

/// What a sequence's choices remember from step to step; the loop keeps one for each sequence.
struct ChoiceMemory {
  KlassMemory klass;
  WinoMemory wino;
  int64_t chosen =
      0;  // positions of the block that were known before its first step or chosen since
};

/// Whether a block is done after `steps` of them, `memory` being that of the last: T steps, or with
/// the quota `carry` as many more as it takes to choose what was carried over.
bool schedule_spent(const UnmaskingOptions& options, const ChoiceMemory& memory, int64_t steps);

/// One sequence of a denoising pass. What it refers to outlives the call.
struct StepInput {
  const SequencePass& pass;            // kind denoise
  const std::vector<int64_t>& tokens;  // the whole sequence as it went in, prompt and answer
  int64_t prompt_length = 0;           // the answer is everything behind it
  const ReplayStep* replay = nullptr;  // the recorded step to repeat; null: own choice
  ChoiceMemory& memory;
  std::vector<bool> predicted = {};  // [B] positions that the pass predicts, no other is decided;
                                     // empty: all. The others have token -1 and confidence NaN
  std::vector<bool> open = {};       // [B] positions that may be chosen; empty: all
  at::Tensor shadow = {};            // [B, V] logits of the second look at the block (wino)
  std::vector<int64_t> behind = {};  // positions behind the block that the pass predicts (klass)
  at::Tensor behind_logits = {};     // [N, V] theirs
  bool first_only = false;           // take the block's first position, whatever the strategy
};

/// Whether the masked positions are all that a step of these options has to predict, so that their
/// rows alone may go through the LM head; and with this model, for whoever watches.
bool masks_alone(const DecodeOptions& options);
bool masks_alone(const DecodeOptions& options, const BlockDiffusionModel& model,
                 const Watcher& watcher);

/// Shows the logits that decide_tokens takes, of these slots of the pass, with NaN at the positions
/// that it does not predict.
void show_logits(Watcher& watcher, const PassContext& context, const std::vector<int64_t>& slots,
                 const std::vector<StepInput>& inputs, const at::Tensor& logits);

/// logits [S, B, V], or [R, V] of the positions in StepInput::predicted alone, row after row (where
/// masks_alone), an entry of `inputs` for each sequence -> what each decides. A selected
/// position whose token is [MASK] stays masked. Throws CheckpointError when a prediction rests on
/// NaN or infinity: such logits decide tokens all the same, and all of them mean nothing.
std::vector<StepDecision> decide_tokens(const DecodeOptions& options, const at::Tensor& logits,
                                        const std::vector<StepInput>& inputs);

}  // namespace blockscope
