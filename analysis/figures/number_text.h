// Numbers as figures, captions and tables print them, and the small table that goes with a figure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace blockscope {

/// Writes a number, and NaN where there is none.
using NumberText = std::string (*)(double);
std::string fixed(double value, int decimals);
template <int kDecimals>
std::string decimals(double value) {
  return fixed(value, kDecimals);
}
std::string six_digits(double value);  ///< significant ones

/// A cell with its column's names, so that text and CSV come from one list.
struct TableCell {
  std::string title;  ///< in the text; empty: in the CSV alone
  std::string csv;    ///< in the CSV; empty: in the text alone
  std::variant<std::string, std::int64_t, double> value;
  NumberText text = decimals<2>;  ///< how the text writes a number
};

/// A small table: the first column names the row, the others are numbers.
struct NumberTable {
  std::vector<std::string> header;             ///< [columns]
  std::vector<std::vector<std::string>> rows;  ///< [rows][columns], plain text
  bool empty() const { return rows.empty(); }
  /// A row of the cells that have the name, which the first row puts into the header.
  void add_text(const std::vector<TableCell>& cells);
  void add_csv(const std::vector<TableCell>& cells, NumberText number = six_digits);
};

/// "0.9876": four decimals, three significant digits where that says nothing, "–" for NaN.
std::string report_number(double value, int decimals = 4);
/// "1,234,567".
std::string count_text(std::int64_t count);
/// "1 block", "20 blocks".
std::string counted(std::int64_t count, std::string_view singular, std::string_view plural);

}  // namespace blockscope
