// Columns of a result's table: means of one array over the axes that the table doesn't show.
// Internal to result_table.cpp.
#pragma once

#include <string>
#include <vector>

#include "analysis/results/metric_result.h"
#include "analysis/results/text_table.h"

namespace blockscope {

/// The values below one heading.
struct Column {
  std::string title;
  std::vector<double> values;       // [row]
  std::vector<std::int64_t> terms;  // [row]; empty: none
  double total = 0.0;               // over all rows; only with terms
  std::int64_t total_terms = 0;
};

/// Means along `row`, weighted by terms. An array without terms must have no other axis, because it
/// has no weights.
Column make_column(const std::string& title, const ResultArray& array, const std::string& row);

/// The array at element `i` of an axis, without that axis.
ResultArray slice(const ResultArray& array, const std::string& axis, std::size_t i);

/// A table of at most `max_rows` rows. With `totals`, a last row has the values over all rows.
TextTable make_table(const ResultAxis& axis, const std::vector<Column>& columns,
                     std::size_t max_rows, bool totals);

}  // namespace blockscope
