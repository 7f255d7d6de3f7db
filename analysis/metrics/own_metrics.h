// Metrics that a plugin brings, docs/python.md. They are computed by its own code, not by a
// StepMetric, so they stand in a table of their own.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "analysis/pass/step_pass.h"

namespace blockscope {

struct OwnMetric {
  std::string name;
  std::string description;  ///< one line
  std::string level;        ///< lowest --record level
  /// `steps` from 1; unset: all. Of the options, it uses rows, layers, threads and progress. Throws
  /// TraceError if a trace lacks the level.
  std::function<MetricResult(
      const TraceGroup&, const std::optional<std::vector<std::int64_t>>& steps, const PassOptions&)>
      compute;
};

const std::vector<OwnMetric>& own_metrics();
/// Call it before a command runs.
void add_own_metric(OwnMetric metric);

}  // namespace blockscope
