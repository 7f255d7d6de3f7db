#include "command_line/printable.h"

#include <fmt/format.h>

#include <cstdint>

namespace blockscope {
namespace {

/// Bytes of the well-formed UTF-8 character that `text` begins with (RFC 3629); 0: none.
std::size_t character_length(std::string_view text) {
  const auto byte = [text](std::size_t i) { return static_cast<std::uint8_t>(text[i]); };
  const std::uint8_t first = byte(0);
  if (first < 0x80) return 1;
  const std::size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || text.size() < length) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0U) != 0x80) return 0;
  }
  const std::uint8_t second = byte(1);
  const bool overlong = (first == 0xE0 && second < 0xA0) || (first == 0xF0 && second < 0x90);
  const bool beyond = (first == 0xED && second > 0x9F) || (first == 0xF4 && second > 0x8F);
  return overlong || beyond ? 0 : length;
}

bool steers(std::string_view character) {
  const auto first = static_cast<std::uint8_t>(character[0]);
  if (first < 0x20) return first != '\n' && first != '\t';
  if (first == 0x7F) return true;
  return first == 0xC2 && static_cast<std::uint8_t>(character[1]) < 0xA0;  // C1
}

}  // namespace

std::string printable(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    const std::size_t length = character_length(text);
    const std::string_view character = text.substr(0, length == 0 ? 1 : length);
    if (length > 0 && !steers(character)) {
      result += character;
    } else {
      for (const char byte : character) {
        result += fmt::format("\\x{:02x}", static_cast<std::uint8_t>(byte));
      }
    }
    text.remove_prefix(character.size());
  }
  return result;
}

}  // namespace blockscope
