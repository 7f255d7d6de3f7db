// Decoding with DiffusionGemma. The encoder reads the prompt. Then each block is a canvas of random
// tokens: at most T denoising steps, and an encoder pass over the finished canvas, which stores its
// keys. The sequence ends without that pass. Source: transformers `generation_diffusion_gemma.py:
// DiffusionGemmaGenerationMixin.generate`. strategies/canvas.h has the choice of tokens.
#pragma once

#include <cstdint>
#include <vector>

#include "probe/decode/decoder.h"

namespace blockscope {

/// Decodes one request, as decode_batch() does.
std::vector<DecodeOutcome> decode_noise_canvas(const BlockDiffusionModel& model,
                                               AttentionPolicy& policy,
                                               const DecodeOptions& options,
                                               const DecodeRequest& request, int64_t& next_pass,
                                               const DecodeCallbacks& callbacks);

}  // namespace blockscope
