// The few pieces of HTML that the report is made of. Texts are plain and escaped here.
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

std::string html_table(const NumberTable& table, std::string_view css_class = "numbers");
/// Folded away until a click; open in print.
std::string html_details(std::string_view summary, const std::string& html);
/// Prose, escaped; "A_out", "A_in", "L_out" and "L_in" with their subscripts.
std::string html_prose(std::string_view text);
std::string html_paragraph(std::string_view text, std::string_view css_class = "");

}  // namespace blockscope
