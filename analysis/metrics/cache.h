// What the cache of a bidirectional model saved, and how stale it was, from /cache and the
// staleness values in /shadow. L is the number of positions of a sequence. C(l, s) is the number of
// positions for which step s computed query, attention and FFN at layer l.
//   rows       mean C over the blocks' steps s;
//   saved      1 - sum C / sum L: share of a pass over the whole canvas that was not computed;
//   keys, values  entries written, mean per pass;
//   tokens per forward pass: decided tokens, without those taken back, over all denoising passes.
// Staleness (capture --shadow): cosine to a pass over the whole canvas without a cache, for the
// entries that were not written and the attention outputs that were computed.
#pragma once

#include <memory>

#include "analysis/metrics/metrics.h"

namespace blockscope {

/// Arrays: means [quantity]; rows, saved, keys, values [layer, step], for all layers of the model,
/// recorded or not; rows_by_block [block, step]; key_cosine, value_cosine, attention_cosine [layer,
/// step] for recorded rows and layers, if the trace has them. Terms are passes (saved: positions of
/// the canvases).
std::unique_ptr<StepMetric> make_cache_metric();

}  // namespace blockscope
