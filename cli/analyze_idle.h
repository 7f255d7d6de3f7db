// Options of `blockscope analyze` that would do nothing. Internal to the command's files. Each
// throws UsageError that names the option and what it needs.
#pragma once

#include <CLI/App.hpp>
#include <vector>

#include "analysis/metrics/metrics.h"
#include "analysis/results/metric_result.h"
#include "cli/analyze_flags.h"

namespace blockscope {

/// What the options alone tell. Also an axis that --by names twice.
void refuse_idle_combinations(const CLI::App& command, const AnalyzeFlags& flags);
/// What none of the chosen metrics looks at.
void refuse_idle_metric_options(const CLI::App& command,
                                const std::vector<const MetricInfo*>& chosen);
/// What selects along an axis that no result has.
void refuse_idle_axes(const CLI::App& command, const std::vector<MetricResult>& results);

}  // namespace blockscope
