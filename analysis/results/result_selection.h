// Selects heads and steps of results after the pass. Finds the results that have the axes of a
// table.
#pragma once

#include <string>
#include <vector>

#include "analysis/results/metric_result.h"

namespace blockscope {

/// Outcome of a selection along one axis.
struct SelectionOutcome {
  bool matched = false;            ///< at least one array has one of the wanted elements
  std::vector<double> there;       ///< elements of all arrays that have the axis, ascending
  std::vector<std::string> whole;  ///< "metric/array" of arrays without the axis: unchanged
};

/// Keeps the wanted elements of `axis` in every array that has the axis. Drops arrays that have
/// none of the elements.
SelectionOutcome keep_elements(std::vector<MetricResult>& results, const std::string& axis,
                               const std::vector<double>& wanted);

/// Names of the metrics in which no array has all axes of `by`, in order. Throws UsageError if
/// those are all metrics; the message lists the existing axes.
std::vector<std::string> metrics_without(const std::vector<MetricResult>& results,
                                         const std::vector<std::string>& by);

}  // namespace blockscope
