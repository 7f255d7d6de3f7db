// WINO's second look (arXiv 2507.18578, section 3.2; Feng-Hong/WINO-DLLM `LLaDA/decoding.py:
// decoding_wino`): B masks at the block's positions, behind the canvas in the same pass. They see
// every key of the canvas but that of their own position, and one another; no row of the canvas
// sees them. So they say what would stand at a position if its token were not there.
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
