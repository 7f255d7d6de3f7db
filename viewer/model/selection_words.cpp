#include "viewer/model/selection_words.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <sstream>

#include "decode_record/base/error.h"

namespace blockscope {

namespace {

std::string percent_decoded(const std::string& text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    unsigned value = 0;
    const char* const digits = text.data() + i + 1;
    if (text[i] == '%' && i + 2 < text.size() &&
        std::from_chars(digits, digits + 2, value, 16).ptr == digits + 2) {
      out.push_back(static_cast<char>(value));
      i += 2;
    } else {
      out.push_back(text[i]);
    }
  }
  return out;
}

}  // namespace

std::string percent_encoded(const std::string& text) {
  std::string out;
  for (const char letter : text) {
    const auto byte = static_cast<unsigned char>(letter);
    const bool plain = (byte < 0x80 && std::isalnum(byte) != 0) || letter == '-' || letter == '_' ||
                       letter == '.' || letter == '/';
    out += plain ? std::string(1, letter) : fmt::format("%{:02X}", byte);
  }
  return out;
}

SelectionText parse_selection(const std::string& text) {
  SelectionText wanted;
  std::string rest = text.starts_with('#') ? text.substr(1) : text;
  std::ranges::replace(rest, '&', ',');
  std::istringstream parts(rest);
  for (std::string part; std::getline(parts, part, ',');) {
    const auto equals = part.find('=');
    const std::string name = part.substr(0, equals);
    if (equals != std::string::npos && (name == "trace" || name == "panel")) {
      (name == "trace" ? wanted.trace : wanted.panel) = percent_decoded(part.substr(equals + 1));
      continue;
    }
    std::int64_t value = 0;
    const char* const end = part.data() + part.size();
    const auto read = equals == std::string::npos
                          ? std::from_chars_result{end, std::errc::invalid_argument}
                          : std::from_chars(part.data() + equals + 1, end, value);
    std::optional<std::int64_t>* slot = name == "sequence" ? &wanted.sequence
                                        : name == "block"  ? &wanted.block
                                        : name == "step"   ? &wanted.step
                                        : name == "layer"  ? &wanted.layer
                                        : name == "head"   ? &wanted.head
                                        : name == "token"  ? &wanted.token
                                                           : nullptr;
    if (slot == nullptr || read.ec != std::errc{} || read.ptr != end) {
      throw UsageError(
          fmt::format("--select: expected name=number with sequence, block, step, layer, head or "
                      "token, or trace=FILE or panel=NAME, separated by commas, got '{}'",
                      part));
    }
    *slot = value;
  }
  return wanted;
}

}  // namespace blockscope
