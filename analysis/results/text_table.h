// Aligned columns of text for a terminal.
#pragma once

#include <string>
#include <vector>

namespace blockscope {

/// A readable value: four decimals, or fewer for large values, and "-" for NaN (no terms). A count
/// has no decimals.
std::string value_text(double value, bool is_count = false);

/// `count` indices of [0, size), evenly spread and ascending, including the first and the last. All
/// of them if there are at most `count`.
std::vector<std::size_t> spread(std::size_t size, std::size_t count);

class TextTable {
 public:
  explicit TextTable(std::vector<std::string> header) : header_(std::move(header)) {}
  /// `cells` must have as many cells as the header.
  void add_row(std::vector<std::string> cells);
  /// Adds a line between the previous rows and the next ones.
  void add_rule() { rules_.push_back(rows_.size()); }
  std::size_t width() const;
  /// Lines that end with "\n", with right-aligned columns and two spaces before each.
  std::string text() const;

 private:
  std::vector<std::size_t> column_widths() const;
  std::vector<std::string> header_;
  std::vector<std::vector<std::string>> rows_;
  std::vector<std::size_t> rules_;
};

}  // namespace blockscope
