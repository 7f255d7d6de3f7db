#include "analysis/results/text_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace blockscope {

std::string value_text(double value, bool is_count) {
  if (std::isnan(value)) return "-";
  if (!std::isfinite(value)) return value > 0 ? "inf" : "-inf";
  const double size = std::abs(value);
  const bool whole = value == std::round(value) && size < 1e15;
  if (whole && (is_count || size >= 10 || value == 0.0)) return fmt::format("{:.0f}", value);
  if (size >= 1e6 || size < 1e-3) return fmt::format("{:.2e}", value);
  return size < 100 ? fmt::format("{:.4f}", value) : fmt::format("{:.1f}", value);
}

std::vector<std::size_t> spread(std::size_t size, std::size_t count) {
  std::vector<std::size_t> picked;
  if (size <= count) {
    for (std::size_t i = 0; i < size; ++i) picked.push_back(i);
    return picked;
  }
  for (std::size_t i = 0; i < count; ++i) {
    picked.push_back(count == 1 ? 0 : i * (size - 1) / (count - 1));
  }
  return picked;
}

void TextTable::add_row(std::vector<std::string> cells) {
  if (cells.size() != header_.size()) throw std::logic_error("TextTable: a row of another width");
  rows_.push_back(std::move(cells));
}

std::vector<std::size_t> TextTable::column_widths() const {
  std::vector<std::size_t> widths(header_.size());
  for (std::size_t i = 0; i < header_.size(); ++i) {
    widths[i] = header_[i].size();
    for (const auto& row : rows_) widths[i] = std::max(widths[i], row[i].size());
  }
  return widths;
}

std::size_t TextTable::width() const {
  std::size_t sum = 0;
  for (const std::size_t width : column_widths()) sum += width + 2;
  return sum;
}

std::string TextTable::text() const {
  const auto widths = column_widths();
  std::string text;
  const auto add_line = [&](const std::vector<std::string>& cells) {
    for (std::size_t i = 0; i < cells.size(); ++i) {
      text += fmt::format("  {:>{}}", cells[i], widths[i]);
    }
    text += '\n';
  };
  const auto add_rule_line = [&] { text += "  " + std::string(width() - 2, '-') + '\n'; };
  add_line(header_);
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    if (std::ranges::find(rules_, i) != rules_.end()) add_rule_line();
    add_line(rows_[i]);
  }
  return text;
}

}  // namespace blockscope
