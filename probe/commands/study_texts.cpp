#include "probe/commands/study_texts.h"

#include <sstream>

#include "analysis/results/export_csv.h"
#include "analysis/results/text_table.h"

namespace blockscope {
namespace {

/// Wraps text at 100 characters.
std::string wrapped(const std::string& text) {
  constexpr size_t kWidth = 100;
  std::istringstream words(text);
  std::string result, line, word;
  while (words >> word) {
    if (!line.empty() && line.size() + 1 + word.size() > kWidth) {
      result += line + "\n";
      line.clear();
    }
    if (!line.empty()) line += ' ';
    line += word;
  }
  return line.empty() ? result : result + line + "\n";
}

std::string table_text(const ReportTable& part) {
  TextTable table(part.table.header);
  for (const std::vector<std::string>& row : part.table.rows) table.add_row(row);
  return wrapped(part.title) + table.text() + wrapped(part.caption);
}

}  // namespace

std::string report_text(const std::string& heading, const StudyReport& report) {
  std::string text = heading;
  for (const ReportTable& table : report.tables) {
    text += '\n';
    text += table_text(table);
  }
  if (!report.notes.empty()) text += '\n';
  for (const std::string& note : report.notes) text += wrapped(note);
  return text;
}

std::string csv_text(const StudyReport& report) {
  std::string text;
  const auto add = [&](const std::vector<std::string>& row) {
    for (size_t i = 0; i < row.size(); ++i) {
      if (i > 0) text += ',';
      text += csv_field(row[i]);
    }
    text += '\n';
  };
  add(report.csv.header);
  for (const std::vector<std::string>& row : report.csv.rows) add(row);
  return text;
}

}  // namespace blockscope
