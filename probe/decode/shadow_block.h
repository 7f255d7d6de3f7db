// WINO's second look (arXiv 2507.18578, section 3.2; Feng-Hong/WINO-DLLM `LLaDA/decoding.py:
// decoding_wino`): B extra masks at the block's positions, after the canvas in the same pass. A
// shadow row sees the other shadow rows and every key of the canvas except that of its own
// position. No row of the canvas sees the shadow rows. So they predict what a position would hold
// if its token were unknown.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "probe/caches/canvas_keys.h"
#include "probe/model/attention_layer.h"

namespace blockscope {

/// The attention part of a layer for the shadow rows: x [1, B, hidden_size] -> same shape. `keys`
/// are those of the canvas at this layer and pass. Softmax in float32.
at::Tensor shadow_attention(int64_t layer, const AttentionLayer& weights, const at::Tensor& x,
                            const RotaryRows& rotary, const CanvasKeys& keys);

}  // namespace blockscope
