// What ran, in words: the page's head.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "analysis/pass/block_index.h"
#include "analysis/pass/step_pass.h"
#include "analysis/report/report_metrics.h"

namespace blockscope {

/// How much there is in all traces together.
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
/// Up to three sentences, true either way the numbers fall.
std::vector<std::string> find_findings(const ReportMetrics& metrics);

}  // namespace blockscope
