// Fast-dLLM's threshold and factor curves: accuracy and tokens per step of several runs of one
// strategy that differ in its parameter.
#pragma once

#include <vector>

#include "analysis/pass/step_pass.h"
#include "analysis/results/metric_result.h"

namespace blockscope {

/// One result per strategy in the group, with arrays over [parameter], ascending: tokens_per_step
/// (terms: denoising steps), accuracy (terms: scored sequences) and steps_per_block (terms:
/// blocks). Traces of the same strategy and parameter are one point. The parameter is threshold
/// (`threshold`, `low_confidence_dynamic`, `prefix_ordered`, `klass`), factor, eb_threshold
/// (`entropy_bounded`) or, for `sequential`, `low_confidence_static` and `pc_sampler`,
/// denoising_steps with 0 standing for the block length. A strategy ranked by something else, or
/// with another quota, is another curve (/run/json: strategy_text).
/// Throws TraceError when /run/json doesn't say how a trace was decoded. A replayed run shows the
/// decisions of another and is refused with UsageError.
std::vector<MetricResult> decoding_curves(const TraceGroup& traces);

}  // namespace blockscope
