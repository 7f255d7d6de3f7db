// Text at the top of the page: what ran, and the main findings.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "analysis/pass/block_index.h"
#include "analysis/pass/step_pass.h"
#include "analysis/report/report_metrics.h"

namespace blockscope {

/// Counts over all traces together.
struct TraceCounts {
  std::int64_t sequences = 0;  ///< without those marked aborted
  std::int64_t blocks = 0;
  std::int64_t steps = 0;
};
TraceCounts count_trace(const std::vector<std::vector<BlockSteps>>& blocks);

std::string model_name(const TraceGroup& traces);
/// `backbone`: path of its trace; empty: none.
std::vector<std::pair<std::string, std::string>> run_facts(const TraceGroup& traces,
                                                           const TraceCounts& counts,
                                                           const std::string& backbone);
/// The main findings, at most one per metric. Each is worded to fit the numbers.
std::vector<std::string> find_findings(const ReportMetrics& metrics);

}  // namespace blockscope
