// How stale a bidirectional model's cache is: after a pass with it, the same input once more
// through the whole canvas without one, compared layer by layer. What --shadow does for policies,
// for caches; costs a full pass a step.
#pragma once

#include <cstdint>
#include <vector>

#include "probe/decode/canvas_seams.h"
#include "probe/model/block_diffusion_model.h"

namespace blockscope {

/// `tokens` [L]: the canvas as the pass saw it; `keys` and `seams` as the pass left them. On a
/// device nobody waits for what is returned.
Staleness measure_staleness(const BlockDiffusionModel& model, const std::vector<int64_t>& tokens,
                            const CanvasKeys& keys, const CanvasSeams& seams);

}  // namespace blockscope
