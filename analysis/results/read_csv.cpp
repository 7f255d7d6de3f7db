#include "analysis/results/read_csv.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>
#include <limits>
#include <map>
#include <optional>
#include <set>

#include "decode_record/base/error.h"

namespace blockscope {
namespace {

constexpr std::size_t kMostCells = std::size_t{1} << 26U;

/// Records of RFC 4180, one after the other.
class CsvRecords {
 public:
  CsvRecords(std::istream& in, std::string path) : path_(std::move(path)), in_(in) {}

  /// The fields of the next record; nullopt at the end of the file.
  std::optional<std::vector<std::string>> next() {
    std::string line;
    if (!std::getline(in_, line)) return std::nullopt;
    ++line_;
    std::vector<std::string> fields(1);
    bool quoted = false;
    for (std::size_t i = 0;; ++i) {
      if (i == line.size()) {
        if (!quoted) break;
        std::string more;
        if (!std::getline(in_, more)) refuse("a quote that nothing closes");
        ++line_;
        line += "\n" + more;
        fields.back() += '\n';
        continue;
      }
      const char c = line[i];
      if (quoted && c == '"' && i + 1 < line.size() && line[i + 1] == '"') {
        fields.back() += c;
        ++i;
      } else if (c == '"') {
        quoted = !quoted;
      } else if (c == ',' && !quoted) {
        fields.emplace_back();
      } else if (c != '\r' || quoted) {
        fields.back() += c;
      }
    }
    return fields;
  }

  [[noreturn]] void refuse(const std::string& found, const std::string& hint = "") const {
    throw Error(
        fmt::format("{}:{}: {}{}", path_, line_, found, hint.empty() ? "" : ". HINT: " + hint));
  }

 private:
  std::string path_;
  std::istream& in_;
  std::size_t line_ = 0;
};

template <typename Number>
std::optional<Number> number_of(const std::string& text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

/// One row: its labels by axis, its value and its terms.
struct Cell {
  std::vector<std::string> labels;
  double value = 0.0;
  std::optional<std::int64_t> terms;
};

/// The rows of one array.
struct Rows {
  std::string metric, array, unit;
  std::vector<bool> has;  ///< [axes]
  std::vector<Cell> cells;
};

/// Numbers ascending; labels that are no numbers in the order of the file.
ResultAxis axis_of(const std::string& name, const std::vector<std::string>& labels) {
  ResultAxis axis{name, {}, {}};
  std::set<std::string> seen;
  bool numbers = true;
  for (const std::string& label : labels) {
    if (!seen.insert(label).second) continue;
    axis.labels.push_back(label);
    const auto value = number_of<double>(label);
    numbers = numbers && value.has_value() && std::isfinite(*value);
    axis.index.push_back(value.value_or(0.0));
  }
  if (!numbers) {
    axis.index.clear();
    return axis;
  }
  axis.labels.clear();
  std::ranges::sort(axis.index);
  axis.index.erase(std::unique(axis.index.begin(), axis.index.end()), axis.index.end());
  return axis;
}

std::size_t place_on(const ResultAxis& axis, const std::string& label) {
  if (axis.labels.empty()) {
    return static_cast<std::size_t>(
        std::ranges::lower_bound(axis.index, *number_of<double>(label)) - axis.index.begin());
  }
  return static_cast<std::size_t>(std::ranges::find(axis.labels, label) - axis.labels.begin());
}

ResultArray array_of(const Rows& rows, const std::vector<std::string>& axes,
                     const std::string& path) {
  ResultArray array;
  array.name = rows.array;
  array.unit = rows.unit;
  array.description = rows.array;
  std::ranges::replace(array.description, '_', ' ');
  std::size_t cells = 1;
  for (std::size_t i = 0; i < axes.size(); ++i) {
    if (!rows.has[i]) continue;
    std::vector<std::string> labels;
    for (const Cell& cell : rows.cells) labels.push_back(cell.labels[i]);
    array.axes.push_back(axis_of(axes[i], labels));
    cells *= array.axes.back().size();
    if (cells > kMostCells) {
      throw Error(
          fmt::format("{}: {}: expected at most {} cells, got more", path, rows.array, kMostCells));
    }
  }
  array.values.assign(cells, std::numeric_limits<double>::quiet_NaN());
  array.terms.assign(cells, 0);
  std::vector<bool> filled(cells, false);
  for (const Cell& cell : rows.cells) {
    std::size_t at = 0;
    for (std::size_t i = 0, axis = 0; i < axes.size(); ++i) {
      if (!rows.has[i]) continue;
      at = at * array.axes[axis].size() + place_on(array.axes[axis], cell.labels[i]);
      ++axis;
    }
    if (filled[at]) {
      throw Error(fmt::format("{}: {}: expected every cell once, got {} twice", path, rows.array,
                              fmt::join(cell.labels, " ")));
    }
    filled[at] = true;
    array.values[at] = cell.value;
    array.terms[at] = cell.terms.value_or(std::isfinite(cell.value) ? 1 : 0);
  }
  return array;
}

}  // namespace

std::vector<MetricResult> read_results_csv(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw Error(fmt::format("{}: can't be opened. HINT: name a file of results", path));
  return parse_results_csv(in, path);
}

std::vector<MetricResult> parse_results_csv(std::istream& in, const std::string& path) {
  CsvRecords records(in, path);
  const auto header = records.next();
  if (header && header->front().starts_with("\x89HDF")) {
    throw Error(fmt::format("{}: expected CSV, got HDF5. HINT: `blockscope analyze --csv` and "
                            "Analysis.save(\"name.csv\") write CSV",
                            path));
  }
  if (!header) records.refuse("expected a header, got an empty file");
  const auto column = [&](const std::string& name) -> std::optional<std::size_t> {
    const auto found = std::ranges::find(*header, name);
    if (found == header->end()) return std::nullopt;
    return static_cast<std::size_t>(found - header->begin());
  };
  for (const char* const name : {"metric", "array", "value"}) {
    if (!column(name)) {
      records.refuse(fmt::format("expected the column {}, got {}", name, fmt::join(*header, ", ")),
                     "`blockscope analyze --csv` and Analysis.save() write such files");
    }
  }
  const auto unit = column("unit");
  const auto terms = column("terms");
  std::vector<std::size_t> axis_columns;
  std::vector<std::string> axes;
  for (std::size_t i = 0; i < header->size(); ++i) {
    const std::string& name = (*header)[i];
    if (std::set<std::string>{"metric", "array", "value", "unit", "terms"}.contains(name)) continue;
    if (std::ranges::find(axes, name) != axes.end()) {
      records.refuse(fmt::format("expected every column once, got {} twice", name));
    }
    axis_columns.push_back(i);
    axes.push_back(name);
  }
  std::vector<Rows> arrays;
  while (const auto fields = records.next()) {
    if (fields->size() == 1 && fields->front().empty()) continue;
    if (fields->size() != header->size()) {
      records.refuse(fmt::format("expected {} fields, got {}", header->size(), fields->size()));
    }
    Cell cell;
    std::vector<bool> has;
    for (const std::size_t i : axis_columns) {
      cell.labels.push_back((*fields)[i]);
      has.push_back(!(*fields)[i].empty());
    }
    const std::string& value = (*fields)[*column("value")];
    const auto number = value.empty() ? std::numeric_limits<double>::quiet_NaN()
                                      : number_of<double>(value).value_or(INFINITY);
    if (std::isinf(number) && value != "inf" && value != "-inf") {
      records.refuse(fmt::format("value: expected a number, got '{}'", value));
    }
    cell.value = number;
    if (terms && !(*fields)[*terms].empty()) {
      cell.terms = number_of<std::int64_t>((*fields)[*terms]);
      if (!cell.terms || *cell.terms < 0) {
        records.refuse(fmt::format("terms: expected a whole number, got '{}'", (*fields)[*terms]));
      }
    }
    const std::string& metric = (*fields)[*column("metric")];
    const std::string& array = (*fields)[*column("array")];
    auto same = std::ranges::find_if(
        arrays, [&](const Rows& rows) { return rows.metric == metric && rows.array == array; });
    if (same == arrays.end()) {
      arrays.push_back({metric, array, unit ? (*fields)[*unit] : "1", has, {}});
      same = arrays.end() - 1;
    }
    if (same->has != has) {
      records.refuse(fmt::format("{}: expected the axes of its first row, got others", array));
    }
    same->cells.push_back(std::move(cell));
    if (arrays.size() > kMostCells || same->cells.size() > kMostCells) {
      records.refuse("expected at most 2^26 cells, got more");
    }
  }
  std::vector<MetricResult> results;
  for (const Rows& rows : arrays) {
    auto same = std::ranges::find(results, rows.metric, &MetricResult::metric);
    if (same == results.end()) {
      results.push_back({rows.metric, rows.metric, "", "", path, {}, {}});
      same = results.end() - 1;
    }
    same->arrays.push_back(array_of(rows, axes, path));
  }
  if (results.empty()) throw Error(fmt::format("{}: expected rows of results, got none", path));
  return results;
}

}  // namespace blockscope
