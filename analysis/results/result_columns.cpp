#include "analysis/results/result_columns.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

namespace blockscope {
namespace {

std::string range_text(const std::vector<std::int64_t>& counts) {
  if (counts.empty()) return "";
  const auto [low, high] = std::ranges::minmax(counts);
  return low == high ? std::to_string(low) : fmt::format("{}..{}", low, high);
}

/// One row: label, values, and their numbers of terms ("12", or "8..12" if they differ).
class RowCells {
 public:
  explicit RowCells(std::string label) : cells_{std::move(label)} {}
  void add_count(double value) { cells_.push_back(value_text(value, true)); }
  void add(double value, std::int64_t terms) {
    cells_.push_back(value_text(value));
    terms_.push_back(terms);
  }
  std::vector<std::string> finish(bool with_terms) {
    if (with_terms) cells_.push_back(range_text(terms_));
    return std::move(cells_);
  }

 private:
  std::vector<std::string> cells_;
  std::vector<std::int64_t> terms_;
};

}  // namespace

ResultArray slice(const ResultArray& array, const std::string& axis_name, std::size_t i) {
  const std::size_t axis = array.axis(axis_name);
  const std::size_t length = array.axes[axis].size();
  std::size_t inner = 1;
  for (std::size_t a = axis + 1; a < array.axes.size(); ++a) inner *= array.axes[a].size();
  ResultArray result = array;
  result.axes.erase(result.axes.begin() + static_cast<std::ptrdiff_t>(axis));
  result.values.clear();
  result.terms.clear();
  for (std::size_t at = i * inner; at < array.values.size(); at += length * inner) {
    for (std::size_t j = at; j < at + inner; ++j) {
      result.values.push_back(array.values[j]);
      if (!array.terms.empty()) result.terms.push_back(array.terms[j]);
    }
  }
  return result;
}

Column make_column(const std::string& title, const ResultArray& array, const std::string& row) {
  Column column;
  column.title = title;
  if (array.terms.empty()) {
    column.values = array.values;
    return column;
  }
  ResultArray rows = mean_over_others(array, {row});
  const ResultArray total = mean_over_others(array, {});
  column.values = std::move(rows.values);
  column.terms = std::move(rows.terms);
  column.total = total.values.at(0);
  column.total_terms = total.terms.at(0);
  return column;
}

TextTable make_table(const ResultAxis& axis, const std::vector<Column>& columns,
                     std::size_t max_rows, bool totals) {
  const bool with_terms =
      !std::ranges::all_of(columns, &std::vector<std::int64_t>::empty, &Column::terms);
  std::vector<std::string> header{axis.name};
  for (const Column& column : columns) header.push_back(column.title);
  if (with_terms) header.emplace_back("terms");
  TextTable table(header);
  for (const std::size_t row : spread(axis.size(), max_rows)) {
    RowCells cells(axis.label(row));
    for (const Column& column : columns) {
      column.terms.empty() ? cells.add_count(column.values.at(row))
                           : cells.add(column.values.at(row), column.terms.at(row));
    }
    table.add_row(cells.finish(with_terms));
  }
  if (!totals || !with_terms || axis.size() < 2) return table;
  table.add_rule();
  RowCells cells("all");
  for (const Column& column : columns) {
    column.terms.empty() ? cells.add_count(std::numeric_limits<double>::quiet_NaN())
                         : cells.add(column.total, column.total_terms);
  }
  table.add_row(cells.finish(with_terms));
  return table;
}

}  // namespace blockscope
