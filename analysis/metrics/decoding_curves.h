// Fast-dLLM's threshold and factor curves: accuracy and tokens per step of runs of one strategy
// with different values of its parameter.
#pragma once

#include <vector>

#include "analysis/pass/step_pass.h"
#include "analysis/results/metric_result.h"

namespace blockscope {

/// One result per strategy in the group, with arrays over [parameter], ascending: tokens_per_step
/// (terms: denoising steps), accuracy (terms: scored sequences) and steps_per_block (terms:
/// blocks). Traces with the same strategy and parameter are one point. The parameter is threshold
/// (`threshold`, `low_confidence_dynamic`, `prefix_ordered`, `klass`, the joint thresholds),
/// factor, or eb_threshold
/// (`entropy_bounded`). For `sequential`, `low_confidence_static` and `pc_sampler` it is
/// denoising_steps, where 0 means the block length. A strategy with a different ranking or quota is
/// a separate curve (/run/json: strategy_text). Throws TraceError if /run/json doesn't say how a
/// trace was decoded. Throws UsageError for a replayed run, which shows the decisions of another
/// run.
std::vector<MetricResult> decoding_curves(const TraceGroup& traces);

}  // namespace blockscope
