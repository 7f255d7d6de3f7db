// Text for gnuplot's scripts and data files.
#include <fmt/format.h>

#include <cmath>
#include <cstdint>

#include "analysis/figures/gnuplot.h"

namespace blockscope {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

struct CodePoint {
  char32_t value = 0;
  std::size_t length = 0;  ///< bytes; 0: invalid
};

/// The code point at the start of `text` (not empty), by RFC 3629: no overlong forms, surrogates or
/// values above U+10FFFF.
CodePoint decode(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<std::uint8_t>(text[i]); };
  const std::uint8_t lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  const std::size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || text.size() < length) return {};
  char32_t value = lead & (0x7FU >> length);
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0U) != 0x80U) return {};
    value = (value << 6U) | (byte(i) & 0x3FU);
  }
  const bool overlong = (length == 3 && value < 0x800) || (length == 4 && value < 0x10000);
  if (overlong || value > 0x10FFFF || (value >= 0xD800 && value <= 0xDFFF)) return {};
  return {value, length};
}

/// C1 controls, U+FFFE/U+FFFF (forbidden in XML), and embeddings, overrides and isolates, which
/// change the direction of the text around them.
bool is_forbidden(char32_t c) {
  return (c >= 0x7F && c <= 0x9F) || (c & 0xFFFEU) == 0xFFFEU || (c >= 0x202A && c <= 0x202E) ||
         (c >= 0x2066 && c <= 0x2069) || c == 0x2028 || c == 0x2029;
}

}  // namespace

std::string printable_utf8(std::string_view text) {
  std::string clean;
  clean.reserve(text.size());
  while (!text.empty()) {
    const CodePoint point = decode(text);
    if (point.length == 0) {
      clean += kReplacement;
      text.remove_prefix(1);
      continue;
    }
    if (point.value == '\n' || point.value == '\t' || point.value == '\r') {
      clean += ' ';
    } else if (point.value < 0x20 || is_forbidden(point.value)) {
      clean += kReplacement;
    } else {
      clean += text.substr(0, point.length);
    }
    text.remove_prefix(point.length);
  }
  return clean;
}

std::string gnuplot_text(std::string_view text) {
  // Empty groups separate quotes, because gnuplot 5.4 misreads three or four quotes in a row.
  std::string literal = "'{}";
  for (const char c : printable_utf8(text)) {
    if (c == '\'') {
      literal += "''{}";
    } else if (std::string_view("{}^_@&~\\").find(c) != std::string_view::npos) {
      literal += '\\';
      literal += c;
    } else {
      literal += c;
    }
  }
  return literal + "'";
}

std::string data_row(std::span<const double> values) {
  std::string line;
  for (const double value : values) {
    line += line.empty() ? "" : "\t";
    line += std::isfinite(value) ? fmt::format("{:.9g}", value) : "NaN";
  }
  return line + "\n";
}

std::string data_row(std::initializer_list<double> values) {
  return data_row(std::span<const double>(values.begin(), values.size()));
}

}  // namespace blockscope
