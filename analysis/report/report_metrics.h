// The results that a report shows, from one pass over the traces, and why others are missing.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "analysis/pass/step_pass.h"
#include "analysis/results/metric_result.h"

namespace blockscope {

struct ReportMetrics {
  std::map<std::string, MetricResult> found;
  std::map<std::string, std::string> missing;  ///< by metric: a sentence for the reader
  bool compares_steps = false;                 ///< some block has more than one recorded step

  const MetricResult* find(const std::string& metric) const;
};

/// Computes every metric of the page that the traces have the data for, in one pass. `backbone`: a
/// trace captured with --replay of these; empty: none. With a backbone, `query_comparison` replaces
/// `query_statistics` and takes two more passes first. Throws UsageError if the backbone's trace
/// doesn't pair with the others.
ReportMetrics measure(const TraceGroup& traces, const std::string& backbone,
                      const PassOptions& options);

/// Lowest level of the traces.
RecordLevel lowest_level(const TraceGroup& traces);

}  // namespace blockscope
