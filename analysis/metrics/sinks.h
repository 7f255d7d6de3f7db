// Attention sinks: prefix keys that receive much more than their share, and how they move from step
// to step (Rulli et al., "Attention Sinks in Diffusion Language Models"). A key is a sink of a KV
// head at a step if its mean probability over the block's queries is larger than `sink_factor` / n.
// n counts the keys that the trace's probabilities are normalised over, so 1 / n is the mean. The
// default factor is 3, as their epsilon.
//
// From /sets/topk and /sets/probability, the k keys with the largest mean probability. If even the
// k-th one is a sink, the row has more sinks than the trace stores: it counts as k, and left_out
// says how many.
#pragma once

#include <memory>

#include "analysis/metrics/metrics.h"

namespace blockscope {

/// Arrays. [layer, kv_head, step]: `sinks` (number), `sink_mass` (their probability), `kept` (share
/// of the previous step's sinks that are still sinks), `first_mass` (probability on the first 4
/// positions, as far as they are in the set). [layer, kv_head]: `lifetime` (steps in a row; a
/// block's end ends it), `moved` (standard deviation of the strongest sink's place over a block's
/// steps, as a share of the prefix), `key_norm` and `value_norm` (norms of the sinks' keys and
/// values as multiples of those of the set's other keys; small values: One Token Is Enough, arXiv
/// 2601.19657; only with /sets/key_norm). [layer, step]: `shared` (share of the layer's KV heads
/// that have a sink, mean over its sinks). [layer, tenth]: `places` (share of the sinks by tenth of
/// the prefix).
std::unique_ptr<StepMetric> make_sinks_metric(const MetricOptions& options);

}  // namespace blockscope
