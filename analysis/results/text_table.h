// Aligned columns of text for a terminal.
#pragma once

#include <string>
#include <vector>

namespace blockscope {

/// A value as a person reads it: four decimals where they say something, "-" for NaN (no terms). A
/// count is a whole number and has none.
std::string value_text(double value, bool is_count = false);

/// `count` indices of [0, size) evenly spread, ascending, with the first and the last; all of them
/// when there are no more than `count`.
std::vector<std::size_t> spread(std::size_t size, std::size_t count);

class TextTable {
 public:
  explicit TextTable(std::vector<std::string> header) : header_(std::move(header)) {}
  /// As many cells as the header has.
  void add_row(std::vector<std::string> cells);
  /// A line between the rows before and the rows to come.
  void add_rule() { rules_.push_back(rows_.size()); }
  std::size_t width() const;
  /// Lines that end with "\n", columns right-aligned, two spaces in front of each.
  std::string text() const;

 private:
  std::vector<std::size_t> column_widths() const;
  std::vector<std::string> header_;
  std::vector<std::vector<std::string>> rows_;
  std::vector<std::size_t> rules_;
};

}  // namespace blockscope
