// Reads from a figure's gnuplot commands what each plot shows.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "analysis/report/explore.h"

namespace blockscope {
namespace {

using nlohmann::json;

/// Splits at `separator` outside quotes and parentheses.
std::vector<std::string> split_outside(std::string_view text, char separator) {
  std::vector<std::string> parts(1);
  char quote = 0;
  int depth = 0;
  for (const char c : text) {
    if (quote != 0) {
      if (c == quote) quote = 0;
    } else if (c == '\'' || c == '"') {
      quote = c;
    } else if (c == '(') {
      ++depth;
    } else if (c == ')') {
      --depth;
    }
    if (c == separator && quote == 0 && depth == 0) {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

/// The words of a command; a quoted text is one word.
std::vector<std::string> words_of(std::string_view command) {
  std::vector<std::string> words = split_outside(command, ' ');
  std::erase(words, "");
  return words;
}

/// A quoted text of gnuplot's enhanced mode as plain text: 'A_{out}' becomes A_out.
std::string plain_text(std::string_view quoted) {
  if (quoted.size() < 2) return "";
  const char quote = quoted.front();
  std::string text;
  for (std::size_t i = 1; i + 1 < quoted.size(); ++i) {
    const char c = quoted[i];
    if (c == '\\' && i + 2 < quoted.size()) {
      text += quoted[++i];
    } else if (c == quote) {
      text += quoted[i++];  // doubled
    } else if (c == '{' && quoted.substr(i + 1).starts_with('/')) {
      i = std::min(quoted.find(' ', i), quoted.size() - 2);  // {/:Bold*1.1 text}
    } else if (c != '{' && c != '}') {
      text += c;
    }
  }
  return text;
}

std::string after(const std::vector<std::string>& words, std::string_view word) {
  const auto at = std::ranges::find(words, word);
  return at == words.end() || at + 1 == words.end() ? "" : *(at + 1);
}

/// The first column that an expression names: "1" and "($1-0.14)" are 1; 0: none.
std::size_t column_of(const std::string& expression) {
  const std::size_t digit = expression.find_first_of("0123456789");
  return digit == std::string::npos ? 0 : std::strtoul(&expression[digit], nullptr, 10);
}

/// Rows of a data file; `index`: the block between two empty lines.
std::vector<std::vector<double>> rows_of(const Figure& figure, const std::string& file,
                                         std::size_t index) {
  std::vector<std::vector<double>> rows;
  const auto data = std::ranges::find(figure.data, file, &FigureData::file);
  if (data == figure.data.end()) return rows;
  std::size_t block = 0;
  std::size_t empty = 0;
  for (const std::string& line : split_outside(data->text, '\n')) {
    if (line.empty()) {
      block += ++empty == 2 ? 1U : 0U;
      continue;
    }
    empty = 0;
    if (block != index) continue;
    rows.emplace_back();
    for (const std::string& cell : split_outside(line, '\t')) {
      rows.back().push_back(std::strtod(cell.c_str(), nullptr));
    }
  }
  return rows;
}

/// Six digits are more than a page shows.
double rounded(double value) {
  if (value == 0.0 || !std::isfinite(value)) return value;
  const double unit = std::pow(10.0, 5.0 - std::floor(std::log10(std::abs(value))));
  return std::round(value * unit) / unit;
}

json points_of(const Figure& figure, const std::string& file, std::size_t index,
               const std::vector<std::size_t>& columns) {
  json points = json::array();
  for (const std::vector<double>& row : rows_of(figure, file, index)) {
    json point = json::array();
    for (const std::size_t column : columns) {
      const double value = column == 0 || column > row.size() ? std::nan("") : row[column - 1];
      if (std::isfinite(value)) point.push_back(rounded(value));
    }
    if (point.size() == columns.size()) points.push_back(std::move(point));
  }
  return points;
}

/// What a plot of these words is; the settings name its axes.
json plot_json(const Figure& figure, const std::vector<std::string>& words,
               const std::map<std::string, json>& settings) {
  static const std::map<std::string, std::string> kKinds{
      {"linespoints", "line"}, {"points", "line"}, {"boxes", "bars"}, {"boxxyerror", "cells"}};
  const auto kind = kKinds.find(after(words, "with"));
  const std::vector<std::string> used = split_outside(after(words, "using"), ':');
  if (kind == kKinds.end() || used.size() < 2) return {{"kind", ""}};
  json plot{{"kind", kind->second}};
  plot["name"] = plain_text(after(words, "title"));
  for (const auto& [name, value] : settings) plot[name] = value;
  std::vector<std::size_t> columns{column_of(used.front()), column_of(used.at(1))};
  if (kind->second == "cells") columns.push_back(column_of(used.back()));
  const std::string file = plain_text(words.front());
  plot["points"] =
      points_of(figure, file, std::strtoul(after(words, "index").c_str(), nullptr, 10), columns);
  return plot;
}

/// The commands without continued lines.
std::string joined(std::string script) {
  for (std::size_t at = 0; (at = script.find("\\\n", at)) != std::string::npos;) {
    script.replace(at, 2, " ");
  }
  return script;
}

}  // namespace

json plots_of(const Figure& figure) {
  static const std::map<std::string, std::string> kNames{
      {"xlabel", "x"}, {"ylabel", "y"}, {"cblabel", "value"}, {"title", "title"}};
  json plots = json::array();
  std::map<std::string, json> settings;
  for (const std::string& line : split_outside(joined(figure.script), '\n')) {
    std::vector<std::string> words = words_of(line);
    const bool comment = !words.empty() && words[0] == "#";
    if (comment) words.erase(words.begin());  // of slot_tics() and token_heatmaps()
    if (words.size() < 2) continue;
    if (comment && words[0] == "names") {
      json& names = settings[words[1] + "_names"] = json::array();
      for (std::size_t i = 2; i < words.size(); ++i) names.push_back(plain_text(words[i]));
    } else if (words[0] == "set" && kNames.contains(words[1]) && words.size() > 2) {
      settings[kNames.at(words[1])] = plain_text(words[2]);
    } else if (words[0] == "unset" && words[1] == "title") {
      settings.erase("title");
    } else if (words[0] == "plot") {
      for (const std::string& part : split_outside(line.substr(line.find("plot ") + 5), ',')) {
        plots.push_back(plot_json(figure, words_of(part), settings));
      }
    }
  }
  // Panels above others have no x label of their own.
  json label;
  for (std::size_t i = plots.size(); i-- > 0;) {
    if (plots[i]["kind"] == "") continue;
    if (plots[i].contains("x")) {
      label = plots[i]["x"];
    } else if (!label.is_null()) {
      plots[i]["x"] = label;
    }
  }
  return plots;
}

std::string script_json(const json& data) {
  std::string escaped;
  for (const char c : data.dump(-1, ' ', true, json::error_handler_t::replace)) {
    if (c == '<') {
      escaped += "\\u003c";
    } else {
      escaped += c;
    }
  }
  return escaped;
}

}  // namespace blockscope
