#include "analysis/results/export_csv.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

namespace blockscope {
namespace {

/// Names of all axes. Every array's axes are in its own order, so that a reader finds it again;
/// only if two arrays disagree is it that of their first occurrence.
std::vector<std::string> axis_columns(const AnalysisDocument& document) {
  std::vector<std::string> names;                       // in the order of first occurrence
  std::map<std::string, std::set<std::string>> before;  // axes that stand before one
  for (const MetricResult& result : document.results) {
    for (const ResultArray& array : result.arrays) {
      for (std::size_t i = 0; i < array.axes.size(); ++i) {
        const std::string& name = array.axes[i].name;
        if (std::ranges::find(names, name) == names.end()) names.push_back(name);
        if (i > 0) before[name].insert(array.axes[i - 1].name);
      }
    }
  }
  std::vector<std::string> columns;
  const auto is_next = [&](const std::string& name) {
    return std::ranges::none_of(before[name], [&](const std::string& other) {
      return std::ranges::find(names, other) != names.end();
    });
  };
  while (!names.empty()) {
    auto next = std::ranges::find_if(names, is_next);
    if (next == names.end()) next = names.begin();  // a circle
    columns.push_back(*next);
    names.erase(next);
  }
  return columns;
}

/// For each column, the axis of the array that belongs to it; -1 if there is none.
std::vector<std::ptrdiff_t> axes_of_columns(const ResultArray& array,
                                            const std::vector<std::string>& columns) {
  std::vector<std::ptrdiff_t> axes;
  for (const std::string& column : columns) {
    const auto found = std::ranges::find(array.axes, column, &ResultAxis::name);
    axes.push_back(found == array.axes.end() ? -1 : found - array.axes.begin());
  }
  return axes;
}

void write_array(const std::string& metric, const ResultArray& array,
                 const std::vector<std::string>& columns, std::ostream& out) {
  const auto axes = axes_of_columns(array, columns);
  std::vector<std::vector<std::string>> labels;
  for (const ResultAxis& axis : array.axes) {
    labels.emplace_back();
    for (std::size_t i = 0; i < axis.size(); ++i) labels.back().push_back(csv_field(axis.label(i)));
  }
  const std::string head =
      fmt::format("{},{},{}", csv_field(metric), csv_field(array.name), csv_field(array.unit));
  std::vector<std::size_t> at(array.axes.size(), 0);
  for (std::size_t cell = 0; cell < array.values.size(); ++cell) {
    std::string line = head;
    for (const std::ptrdiff_t axis : axes) {
      line += ',';
      if (axis >= 0) {
        const auto i = static_cast<std::size_t>(axis);
        line += labels[i][at[i]];
      }
    }
    const double value = array.values[cell];
    line += "," + (std::isnan(value) ? std::string() : number_text(value)) + ",";
    if (!array.terms.empty()) line += std::to_string(array.terms[cell]);
    out << line << '\n';
    for (std::size_t axis = at.size(); axis-- > 0;) {  // row-major: the last axis runs fastest
      if (++at[axis] < array.axes[axis].size()) break;
      at[axis] = 0;
    }
  }
}

}  // namespace

std::string number_text(double value) { return fmt::format("{}", value); }

std::string csv_field(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string result = "\"";
  for (const char c : text) result += c == '"' ? std::string("\"\"") : std::string(1, c);
  return result + "\"";
}

void write_csv(const AnalysisDocument& document, std::ostream& out) {
  const auto columns = axis_columns(document);
  out << "metric,array,unit,";
  for (const std::string& column : columns) out << csv_field(column) << ',';
  out << "value,terms\n";
  for (const MetricResult& result : document.results) {
    for (const ResultArray& array : result.arrays) {
      write_array(result.metric, array, columns, out);
    }
  }
}

}  // namespace blockscope
