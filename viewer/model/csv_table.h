// Numbers of a panel as CSV in long form: axes as columns, one row per value, units in the header.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

namespace blockscope {

class CsvTable {
 public:
  /// A missing value (NaN, or a default-constructed cell) is an empty field.
  using Cell = std::variant<std::monostate, double, std::int64_t, std::string>;

  explicit CsvTable(const std::vector<std::string>& columns);
  /// Throws Error unless there is a cell per column.
  void add(const std::vector<Cell>& row);
  std::size_t rows() const { return rows_; }
  /// The header and all rows, quoted as in RFC 4180; lines end with "\n".
  const std::string& text() const { return text_; }

 private:
  std::size_t columns_;
  std::size_t rows_ = 0;
  std::string text_;
};

}  // namespace blockscope
