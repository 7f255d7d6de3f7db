// JSON as Blockscope writes it: UTF-8 whatever it holds, and the same on a terminal as in a file.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace blockscope {

/// DEL and the C1 control characters of a JSON text as \u00NN, like the C0 ones: a terminal would
/// be shown \xNN (printable.h), which is no JSON.
std::string escape_controls(const std::string& json);

/// One line, or several that are indented by `indent` spaces. Bytes that are no UTF-8, of a file's
/// name or of a text, become U+FFFD.
template <typename Json>
std::string json_text(const Json& value, int indent = -1) {
  return escape_controls(value.dump(indent, ' ', false, Json::error_handler_t::replace));
}

/// `text` as it comes back from a JSON text.
std::string valid_utf8(const std::string& text);

}  // namespace blockscope
