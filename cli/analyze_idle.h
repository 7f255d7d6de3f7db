// Refuses options of `blockscope analyze` that would do nothing. Each function throws UsageError
// that names the option and what it needs. Internal to the command's files.
#pragma once

#include <CLI/App.hpp>
#include <vector>

#include "analysis/metrics/metrics.h"
#include "analysis/results/metric_result.h"
#include "cli/analyze_flags.h"

namespace blockscope {

/// Options that other options make idle. Also refuses an axis that --by names twice.
void refuse_idle_combinations(const CLI::App& command, const AnalyzeFlags& flags);
/// Options that none of the chosen metrics uses.
void refuse_idle_metric_options(const CLI::App& command,
                                const std::vector<const MetricInfo*>& chosen);
/// Options that select along an axis that no result has.
void refuse_idle_axes(const CLI::App& command, const std::vector<MetricResult>& results);

}  // namespace blockscope
