#include "analysis/report/html.h"

#include <fmt/format.h>

#include "analysis/figures/svg.h"

namespace blockscope {

std::string html_table(const NumberTable& table, std::string_view css_class) {
  std::string html = fmt::format("<table class=\"{}\"><thead><tr>", css_class);
  for (const std::string& cell : table.header) {
    html += fmt::format("<th scope=\"col\">{}</th>", escape_markup(cell));
  }
  html += "</tr></thead><tbody>\n";
  for (const std::vector<std::string>& row : table.rows) {
    html += "<tr>";
    for (std::size_t i = 0; i < row.size(); ++i) {
      html += i == 0 ? fmt::format("<th scope=\"row\">{}</th>", escape_markup(row[i]))
                     : fmt::format("<td>{}</td>", escape_markup(row[i]));
    }
    html += "</tr>\n";
  }
  return html + "</tbody></table>\n";
}

std::string html_details(std::string_view summary, const std::string& html) {
  return fmt::format("<details><summary>{}</summary>\n<div class=\"scroll\">{}</div></details>\n",
                     escape_markup(summary), html);
}

std::string html_prose(std::string_view text) {
  std::string html = escape_markup(text);
  for (const std::string_view side : {"out", "in"}) {
    for (const char letter : {'A', 'L'}) {
      const std::string plain = fmt::format("{}_{}", letter, side);
      const std::string typeset = fmt::format("{}<sub>{}</sub>", letter, side);
      for (std::size_t at = 0; (at = html.find(plain, at)) != std::string::npos;) {
        html.replace(at, plain.size(), typeset);
        at += typeset.size();
      }
    }
  }
  return html;
}

std::string html_paragraph(std::string_view text, std::string_view css_class) {
  const std::string attribute = css_class.empty() ? "" : fmt::format(" class=\"{}\"", css_class);
  return fmt::format("<p{}>{}</p>\n", attribute, html_prose(text));
}

}  // namespace blockscope
