#include "analysis/figures/number_text.h"

#include <fmt/format.h>

#include <cmath>

namespace blockscope {
namespace {

/// `number`: null for each cell's own.
void add_row(const std::vector<TableCell>& cells, std::string TableCell::*name, NumberText number,
             NumberTable& table) {
  std::vector<std::string>& row = table.rows.emplace_back();
  for (TableCell cell : cells) {
    if ((cell.*name).empty()) continue;
    if (table.rows.size() == 1) table.header.push_back(cell.*name);
    if (const auto* count = std::get_if<std::int64_t>(&cell.value)) {
      cell.value = std::to_string(*count);
    } else if (const auto* value = std::get_if<double>(&cell.value)) {
      cell.value = (number == nullptr ? cell.text : number)(*value);
    }
    row.push_back(std::get<std::string>(std::move(cell.value)));
  }
}

}  // namespace

void NumberTable::add_text(const std::vector<TableCell>& cells) {
  add_row(cells, &TableCell::title, nullptr, *this);
}

void NumberTable::add_csv(const std::vector<TableCell>& cells, NumberText number) {
  add_row(cells, &TableCell::csv, number, *this);
}

std::string fixed(double value, int decimals) { return fmt::format("{:.{}f}", value, decimals); }

std::string six_digits(double value) { return fmt::format("{:.6g}", value); }

std::string report_number(double value, int decimals) {
  if (std::isnan(value)) return "\u2013";
  if (std::isinf(value)) return value > 0 ? "\u221E" : "\u2212\u221E";
  const double size = std::abs(value);
  if (size != 0.0 && (size < 1e-3 || size >= 1e6)) return fmt::format("{:.3g}", value);
  return fmt::format("{:.{}f}", value, decimals);
}

std::string count_text(std::int64_t count) {
  std::string digits = std::to_string(std::abs(count));
  for (std::ptrdiff_t at = static_cast<std::ptrdiff_t>(digits.size()) - 3; at > 0; at -= 3) {
    digits.insert(static_cast<std::size_t>(at), ",");
  }
  return count < 0 ? "-" + digits : digits;
}

std::string counted(std::int64_t count, std::string_view singular, std::string_view plural) {
  return fmt::format("{} {}", count_text(count), count == 1 ? singular : plural);
}

}  // namespace blockscope
