// A MetricResult as text for a terminal. By default, it has a row per layer, with means over all
// other axes weighted by the number of terms. It has a column per array, or per element of an axis
// that is not part of the model (k, tau, ...). The first table is followed by one over the steps.
// The text says how many terms there are, what was left out, what is not shown, and how to show it.
#pragma once

#include <string>
#include <vector>

#include "analysis/results/metric_result.h"

namespace blockscope {

struct TableOptions {
  /// One or two axes: rows, columns. Empty: chosen for each array.
  std::vector<std::string> by;
  std::size_t width = 100;    ///< columns of the terminal
  std::size_t max_rows = 48;  ///< largest number of rows of one table
};

/// True for axes of the model and of the run (layer, head, step, ...), which can be averaged. Every
/// other axis is a parameter of the metric (k, tau, ...), and its elements are never averaged.
bool is_place(const std::string& axis);

/// Arrays without the axes of `by` are left out.
std::string result_table(const MetricResult& result, const TableOptions& options = {});

}  // namespace blockscope
