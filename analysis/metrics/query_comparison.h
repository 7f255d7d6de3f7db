// Compares the five stages of a trained model with those of its autoregressive backbone (MAGE,
// Table 2: "relative change from backbone to trained"), over the steps that both traces have. The
// backbone is captured with --replay of the trained model's trace, so both saw the same prefixes
// and masks.
#pragma once

#include "analysis/metrics/metrics.h"
#include "analysis/pass/step_pass.h"

namespace blockscope {

/// Arrays, model = trained, backbone:
///   stages [stage, model], relative_change [stage] = (trained - backbone) / |backbone|,
///   kl [model, step], hidden_gap [model, layer], query_gap and query_block_gap [model, layer],
///   recall [model, layer].
/// S2-S4 come from the same kind of dataset on both sides: from /summary if one side lacks the
/// arrays. Throws UsageError if the traces don't pair (see pair_rows), or if recorded layers,
/// heads, block length or k differ.
MetricResult compare_query_statistics(const TraceGroup& trained, const TraceGroup& backbone,
                                      const MetricOptions& options = {},
                                      const PassOptions& pass = {});

}  // namespace blockscope
