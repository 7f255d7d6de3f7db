// The five stages of a trained model beside its autoregressive backbone (MAGE, Table 2: "relative
// change from backbone to trained"), over the steps that both traces have: the backbone is captured
// with --replay of the trained model's trace, so both saw the same prefixes and the same masks.
#pragma once

#include "analysis/metrics/metrics.h"
#include "analysis/pass/step_pass.h"

namespace blockscope {

/// Arrays, model = trained, backbone:
///   stages [stage, model], relative_change [stage] = (trained - backbone) / |backbone|,
///   kl [model, step], hidden_gap [model, layer], query_gap and query_block_gap [model, layer],
///   recall [model, layer].
/// S2-S4 come from the same kind of dataset on both sides: from /summary when either lacks arrays.
/// Throws UsageError when the traces don't pair (see pair_rows) or differ in recorded layers,
/// heads, block length or k.
MetricResult compare_query_statistics(const TraceGroup& trained, const TraceGroup& backbone,
                                      const MetricOptions& options = {},
                                      const PassOptions& pass = {});

}  // namespace blockscope
