// The few pieces of HTML that the report is made of. Texts are plain and escaped here.
#pragma once

#include <string>
#include <string_view>

#include "analysis/figures/number_text.h"

namespace blockscope {

std::string html_table(const NumberTable& table, std::string_view css_class = "numbers");
/// Folded away until a click; left out in print.
std::string html_details(std::string_view summary, const std::string& html);
/// Prose, escaped; "A_out", "A_in", "L_out" and "L_in" with their subscripts.
std::string html_prose(std::string_view text);
std::string html_paragraph(std::string_view text, std::string_view css_class = "");

}  // namespace blockscope
