// What a step of a canvas of random tokens decides beyond its strategy's choice: new random tokens,
// and the canvas's end.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "probe/decode/step_decision.h"

namespace blockscope {

/// A random token of the vocabulary for a position of a canvas, after step `stream.step` (0: before
/// its first step).
int64_t random_token(const DecodeOptions& options, const StreamId& stream, int64_t position,
                     int64_t vocab_size);
/// The random tokens of a recorded step.
std::vector<Noise> noise_of(const ReplayStep& step);

/// What a step of a canvas does after its choice: new random tokens for the positions that it did
/// not accept, or the end of the canvas with the most probable tokens.
/// logits [B, V]: the model's own, from which confidences come, as the temperature says nothing
/// about the model.
void finish_canvas_step(const DecodeOptions& options, const StepInput& input,
                        const at::Tensor& logits, StepDecision& decision);

}  // namespace blockscope
