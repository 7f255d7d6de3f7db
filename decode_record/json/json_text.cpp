#include "decode_record/json/json_text.h"

#include <fmt/format.h>

namespace blockscope {

std::string escape_controls(const std::string& json) {
  std::string result;
  result.reserve(json.size());
  for (std::size_t i = 0; i < json.size(); ++i) {
    const auto byte = static_cast<unsigned char>(json[i]);
    const auto next = i + 1 < json.size() ? static_cast<unsigned char>(json[i + 1]) : 0U;
    if (byte == 0x7F) {
      result += "\\u007f";
    } else if (byte == 0xC2 && next >= 0x80 && next < 0xA0) {
      result += fmt::format("\\u{:04x}", next);
      ++i;
    } else {
      result += json[i];
    }
  }
  return result;
}

std::string valid_utf8(const std::string& text) {
  return nlohmann::json::parse(json_text(nlohmann::json(text))).get<std::string>();
}

}  // namespace blockscope
