// From the logits of a denoising pass to its decision for each sequence: the strategy's choice, or
// the recorded one of a replay. All decoding loops choose their tokens with decide_tokens.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "probe/decode/decoder.h"
#include "probe/decode/watcher.h"
#include "probe/model/block_diffusion_model.h"
#include "probe/policies/pass_context.h"
#include "probe/strategies/block_edit.h"
#include "probe/strategies/canvas.h"
#include "probe/strategies/klass.h"
#include "probe/strategies/wino.h"

namespace blockscope {

/// What a sequence's choices remember from step to step. The loop keeps one for each sequence.
struct ChoiceMemory {
  KlassMemory klass;
  WinoMemory wino;
  CanvasMemory canvas;
  EditMemory edit;
  int64_t chosen = 0;  // block positions known before its first step, or chosen since
};

/// Whether a block may take no more steps after `steps` steps; `memory` is that of the last one.
/// A block may take T steps; with the quota `carry`, more until it has chosen what was carried
/// over.
bool schedule_spent(const UnmaskingOptions& options, const ChoiceMemory& memory, int64_t steps);

/// Writes the tokens that a step decided and took back into its block; not its insertions and
/// deletions.
void write_decision(const StepDecision& decision, int64_t mask_token_id, std::span<int64_t> block);

/// One sequence of a denoising pass. Its references must outlive the call.
struct StepInput {
  const SequencePass& pass;            // kind denoise
  const std::vector<int64_t>& tokens;  // the whole input sequence, prompt and answer
  int64_t prompt_length = 0;           // the answer is everything after it
  const ReplayStep* replay = nullptr;  // the recorded step to repeat; null: own choice
  ChoiceMemory& memory;
  std::vector<bool> predicted = {};  // [B] positions that the pass predicts and may decide; empty:
                                     // all. The others have token -1 and confidence NaN
  std::vector<bool> open = {};       // [B] positions that may be chosen; empty: all
  at::Tensor shadow = {};            // [B, V] logits of the second look at the block (wino)
  std::vector<int64_t> behind = {};  // [N] positions after the block that the pass predicts (klass)
  at::Tensor behind_logits = {};     // [N, V] their logits
  bool first_only = false;           // take the block's first position, whatever the strategy
};

/// Whether a step with these options needs predictions of masked positions only. Then only their
/// rows go through the LM head. The second form also asks the model and the observer.
bool masks_alone(const DecodeOptions& options);
bool masks_alone(const DecodeOptions& options, const BlockDiffusionModel& model,
                 const Watcher& watcher);

/// Shows the logits that decide_tokens takes, for these slots of the pass, with NaN at positions
/// that the pass does not predict.
void show_logits(Watcher& watcher, const PassContext& context, const std::vector<int64_t>& slots,
                 const std::vector<StepInput>& inputs, const at::Tensor& logits);

/// The decision for each entry of `inputs`. logits: [S, B, V], or with masks_alone [R, V] of the
/// positions in StepInput::predicted, row after row. A selected position whose token is [MASK]
/// stays masked. Throws CheckpointError if a prediction rests on NaN or infinite logits: they would
/// still give tokens, but meaningless ones.
std::vector<StepDecision> decide_tokens(const DecodeOptions& options, const at::Tensor& logits,
                                        const std::vector<StepInput>& inputs);

}  // namespace blockscope
