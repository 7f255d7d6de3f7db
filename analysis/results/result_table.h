// A MetricResult for a terminal. By default a row per layer, means over everything else weighted by
// the number of terms, a column per array or per element of an axis that is not part of the model
// (k, tau, ...); below the first one the course over the steps. Says how many terms there are and
// what was left out. What is folded away is named, with the way to get it.
#pragma once

#include <string>
#include <vector>

#include "analysis/results/metric_result.h"

namespace blockscope {

struct TableOptions {
  /// One or two axes: rows, columns. Empty: chosen for each array.
  std::vector<std::string> by;
  std::size_t width = 100;    ///< columns of the terminal
  std::size_t max_rows = 48;  ///< of one table; further rows are folded
};

/// Axes of the model and of the run (layer, head, step, ...), which means are taken over; every
/// other axis is a parameter of the metric (k, tau, ...), whose elements are never averaged.
bool is_place(const std::string& axis);

/// Arrays without the axes of `by` are left out.
std::string result_table(const MetricResult& result, const TableOptions& options = {});

}  // namespace blockscope
