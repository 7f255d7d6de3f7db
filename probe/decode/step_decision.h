// From a step's predictions to what it decides for one sequence: its own choice, or the recorded
// one of a replay.
#pragma once

#include "probe/decode/decode_observer.h"
#include "probe/decode/decoder.h"
#include "probe/policies/pass_context.h"

namespace blockscope {

/// Throws CheckpointError when a prediction rests on NaN or infinity: such logits decide tokens all
/// the same, and all of them mean nothing.
void check_finite(const SequencePass& pass, const BlockPrediction& prediction);

/// What the run's strategy takes. A selected position whose token is [MASK] stays masked.
StepDecision choose_tokens(const DecodeOptions& options, const SequencePass& pass,
                           BlockPrediction prediction);

/// What a recorded step took; `block_start` is the absolute position of the block's first token.
StepDecision replayed_tokens(const ReplayStep& step, int64_t block_start,
                             BlockPrediction prediction);

}  // namespace blockscope
