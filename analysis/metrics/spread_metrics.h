// How a head's weights are spread over the keys, from /spread (level summary): three metrics. The
// runtime sums the weights while it computes them, so no matrix is stored. Weights are of all keys
// that the step read, and means over the block's queries. Steps at which a head reused an earlier
// A_out have no weights of the prefix; they are left out and counted.
#pragma once

#include <memory>

#include "analysis/metrics/metrics.h"

namespace blockscope {

/// [layer, head, step]: `entropy`, `entropy_external`, `entropy_internal` (nats; of the weights of
/// all, external and internal keys), `effective_keys` (exp(entropy), the number of keys that share
/// the weight), `largest` (largest weight). The entropy of attention is used so in Zhai et al.,
/// "Stabilizing Transformer Training by Preventing Attention Entropy Collapse", arXiv 2303.06296.
std::unique_ptr<StepMetric> make_entropy_metric(const MetricOptions& options);

/// [layer, head, distance]: `by_distance`, share of the weight on external keys by powers of two of
/// their distance from the block. [layer, head, offset]: `by_offset`, share on keys of the block by
/// position minus that of the query. [layer, head, step]: `agreement` and `agreement_first`, 1 -
/// sum |difference| / 2 of these shares to the previous step and to step 1. Weights that only move
/// within a distance don't change them, so they are an upper bound of 1 - total variation of the
/// weights themselves.
std::unique_ptr<StepMetric> make_distance_metric(const MetricOptions& options);

/// [layer, head, region]: `regions`, share of the weight by what stands at the key's position.
/// [region, step]: `regions_by_step`, mean over layers and heads.
std::unique_ptr<StepMetric> make_regions_metric(const MetricOptions& options);

}  // namespace blockscope
