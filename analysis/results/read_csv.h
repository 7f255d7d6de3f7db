// Reads results in the long form of write_csv(), as `blockscope analyze --csv`, Analysis.save() and
// pandas write it: columns metric, array, value, perhaps unit and terms; every other column is an
// axis. An array has the axes whose columns are filled in its rows.
#pragma once

#include <istream>
#include <string>
#include <vector>

#include "analysis/results/metric_result.h"

namespace blockscope {

/// The metrics of the file, in the order of their first rows. Cells without a row have no terms.
/// Throws Error with file and line: a missing column, another number of fields, a value that is no
/// number, a cell that occurs twice, more than 2^26 cells.
std::vector<MetricResult> read_results_csv(const std::string& path);
/// The same of a stream; `path` names it in messages.
std::vector<MetricResult> parse_results_csv(std::istream& in, const std::string& path);

}  // namespace blockscope
