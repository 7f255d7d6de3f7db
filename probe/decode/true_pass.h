// How stale a bidirectional model's cache is. After a pass with the cache, the same input goes
// through the whole canvas without it, and the layers are compared. This is --shadow for caches. It
// costs a full pass per step.
#pragma once

#include <cstdint>
#include <vector>

#include "probe/decode/canvas_seams.h"
#include "probe/model/block_diffusion_model.h"

namespace blockscope {

/// `tokens` [L]: the canvas as the pass saw it; `keys` and `seams`: their state after the pass. The
/// host does not wait for a device.
Staleness measure_staleness(const BlockDiffusionModel& model, const std::vector<int64_t>& tokens,
                            const CanvasKeys& keys, const CanvasSeams& seams);

}  // namespace blockscope
