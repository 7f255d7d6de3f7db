// `blockscope analyze --matrix`: one token x token or step x step matrix as a result like any
// other. Internal to the command's files.
#pragma once

#include "analysis/pass/step_pass.h"
#include "analysis/results/metric_result.h"
#include "cli/analyze_flags.h"

namespace blockscope {

/// One array [position_a, position_b] or [step_a, step_b] of cosines. Which steps, layer and head:
/// --row-a and --row-b, or --sequence, --block and --step (two steps, or one and the step after
/// it),
/// --layer and --head (unset: heads concatenated for tokens, their mean for steps). What is not
/// given: the first that is recorded. Throws UsageError when the selection matches nothing or more
/// than one element, TraceError when the trace lacks the field.
MetricResult similarity_matrix(const TraceGroup& traces, const AnalyzeFlags& flags);

}  // namespace blockscope
