// Numbers as figures, captions and tables print them, and the small table that goes with a figure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace blockscope {

/// A small table: the first column names the row, the others are numbers.
struct NumberTable {
  std::vector<std::string> header;             ///< [columns]
  std::vector<std::vector<std::string>> rows;  ///< [rows][columns], plain text
  bool empty() const { return rows.empty(); }
};

/// "0.9876": four decimals, three significant digits where that says nothing, "–" for NaN.
std::string report_number(double value, int decimals = 4);
/// "1,234,567".
std::string count_text(std::int64_t count);
/// "1 block", "20 blocks".
std::string counted(std::int64_t count, std::string_view singular, std::string_view plural);

}  // namespace blockscope
