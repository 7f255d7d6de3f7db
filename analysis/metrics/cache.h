// What the cache of a bidirectional model saved, and how stale it was, from /cache and the
// staleness under /shadow. With L positions of a sequence, C(l, s) those whose query, attention and
// FFN step s computed at layer l:
//   rows       mean C over the blocks' steps s;
//   saved      1 - sum C / sum L: share of a pass over the whole canvas that was not computed;
//   keys, values  entries written, mean per pass;
//   tokens per forward pass: decided, those taken back not counted, over all denoising passes.
// Staleness (capture --shadow): cosine to a pass over the whole canvas without a cache, of the
// entries that were not written and of the attention outputs that were computed.
#pragma once

#include <memory>

#include "analysis/metrics/metrics.h"

namespace blockscope {

/// Arrays: means [quantity]; rows, saved, keys, values [layer, step], layer of the model, whether
/// it was recorded or not; rows_by_block [block, step]; key_cosine, value_cosine, attention_cosine
/// [layer, step] of the recorded rows and layers where the trace has them. Terms are passes (saved:
/// positions of the canvases).
std::unique_ptr<StepMetric> make_cache_metric();

}  // namespace blockscope
