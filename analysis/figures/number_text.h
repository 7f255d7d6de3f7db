// Numbers in the format of figures, captions and tables, and the small table of a figure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace blockscope {

/// Writes a number or NaN as text.
using NumberText = std::string (*)(double);
std::string fixed(double value, int decimals);
template <int kDecimals>
std::string decimals(double value) {
  return fixed(value, kDecimals);
}
std::string six_digits(double value);  ///< six significant digits

/// A cell with its column's names. Text and CSV come from one list of such cells.
struct TableCell {
  std::string title;  ///< name in the text; empty: only in the CSV
  std::string csv;    ///< name in the CSV; empty: only in the text
  std::variant<std::string, std::int64_t, double> value;
  NumberText text = decimals<2>;  ///< how the text writes a number
};

/// A small table: the first column names the row, the others are numbers.
struct NumberTable {
  std::vector<std::string> header;             ///< [columns]
  std::vector<std::vector<std::string>> rows;  ///< [rows][columns], plain text
  bool empty() const { return rows.empty(); }
  /// Add a row of the cells that have a name in the text or CSV. The first row also sets the
  /// header.
  void add_text(const std::vector<TableCell>& cells);
  void add_csv(const std::vector<TableCell>& cells, NumberText number = six_digits);
};

/// "0.9876": four decimals, or three significant digits where decimals show nothing; "–" for NaN.
std::string report_number(double value, int decimals = 4);
/// "1,234,567".
std::string count_text(std::int64_t count);
/// "1 block", "20 blocks".
std::string counted(std::int64_t count, std::string_view singular, std::string_view plural);

}  // namespace blockscope
