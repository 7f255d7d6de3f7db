// Narrows results to heads and steps after the pass; finds those that have the axes of a table.
#pragma once

#include <string>
#include <vector>

#include "analysis/results/metric_result.h"

namespace blockscope {

/// What a selection along one axis did to some results.
struct SelectionOutcome {
  bool matched = false;            ///< at least one array has one of the wanted elements
  std::vector<double> there;       ///< elements of all arrays that have the axis, ascending
  std::vector<std::string> whole;  ///< "metric/array" of arrays without the axis: left as they are
};

/// Keeps the wanted elements of `axis` in every array that has it; arrays that have none of them
/// are dropped.
SelectionOutcome keep_elements(std::vector<MetricResult>& results, const std::string& axis,
                               const std::vector<double>& wanted);

/// Names of the metrics in which no array has all axes of `by`, in their order. Throws UsageError
/// that lists the axes there are when that is every one of them: there would be nothing to show.
std::vector<std::string> metrics_without(const std::vector<MetricResult>& results,
                                         const std::vector<std::string>& by);

}  // namespace blockscope
