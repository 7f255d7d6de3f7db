// The pieces of HTML in the report. These functions take plain text and escape it.
#pragma once

#include <string>
#include <string_view>

#include "analysis/figures/number_text.h"

namespace blockscope {

std::string html_table(const NumberTable& table, std::string_view css_class = "numbers");
/// Hidden until a click on the summary; left out in print.
std::string html_details(std::string_view summary, const std::string& html);
/// Escaped prose, with subscripts in "A_out", "A_in", "L_out" and "L_in".
std::string html_prose(std::string_view text);
std::string html_paragraph(std::string_view text, std::string_view css_class = "");

}  // namespace blockscope
