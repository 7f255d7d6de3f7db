#include "viewer/model/csv_table.h"

#include <fmt/format.h>

#include <cmath>

#include "analysis/results/export_csv.h"
#include "decode_record/base/error.h"

namespace blockscope {
namespace {

std::string field_of(const CsvTable::Cell& cell) {
  if (const auto* number = std::get_if<double>(&cell)) {
    return std::isnan(*number) ? std::string() : fmt::format("{}", *number);
  }
  if (const auto* number = std::get_if<std::int64_t>(&cell)) return fmt::format("{}", *number);
  if (const auto* text = std::get_if<std::string>(&cell)) return csv_field(*text);
  return {};
}

}  // namespace

CsvTable::CsvTable(const std::vector<std::string>& columns) : columns_(columns.size()) {
  for (const std::string& column : columns) {
    if (!text_.empty()) text_ += ',';
    text_ += csv_field(column);
  }
  text_ += '\n';
}

void CsvTable::add(const std::vector<Cell>& row) {
  if (row.size() != columns_) {
    throw Error(fmt::format("a CSV row has {} cells, expected {}", row.size(), columns_));
  }
  for (std::size_t i = 0; i < row.size(); ++i) {
    if (i > 0) text_ += ',';
    text_ += field_of(row[i]);
  }
  text_ += '\n';
  rows_ += 1;
}

}  // namespace blockscope
