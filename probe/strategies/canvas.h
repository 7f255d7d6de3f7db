// DiffusionGemma's decoding of a canvas of random tokens (transformers
// `generation_diffusion_gemma.py`: EntropyBoundSampler, LinearTemperatureScheduleLogitsProcessor,
// StableAndConfidentStoppingCriteria). Each step draws a token for every position at a temperature
// that falls from step to step. It accepts those of lowest entropy (EB-Sampler, arXiv 2505.24857),
// and gives all others new random tokens. The canvas ends with the most probable tokens.
#pragma once

#include <cstdint>
#include <vector>

#include "probe/strategies/unmasking.h"

namespace blockscope {

/// The temperature of step `step` (from 1) of at most T.
double canvas_temperature(const UnmaskingOptions& options, int64_t step);

/// What a sequence remembers of its canvas.
struct CanvasMemory {
  std::vector<std::vector<int64_t>> best;  // most probable tokens of the last steps, oldest first
};

/// Whether the canvas is finished after this step: the most probable tokens are those of the
/// `stable_steps` steps before, and the mean entropy is below `stop_entropy`. Remembers the step.
bool canvas_settled(const UnmaskingOptions& options, const BlockPrediction& prediction,
                    CanvasMemory& memory);

}  // namespace blockscope
