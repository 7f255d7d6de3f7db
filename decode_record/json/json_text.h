// JSON as Blockscope writes it: always UTF-8, and the same on a terminal as in a file.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace blockscope {

/// Writes DEL and the C1 control characters of a JSON text as \u00NN, like the C0 ones. Else
/// printable.h would print them as \xNN on a terminal, which is not JSON.
std::string escape_controls(const std::string& json);

/// JSON text on one line, or indented by `indent` spaces. Bytes of file names and texts that are
/// not UTF-8 become U+FFFD.
template <typename Json>
std::string json_text(const Json& value, int indent = -1) {
  return escape_controls(value.dump(indent, ' ', false, Json::error_handler_t::replace));
}

/// `text` as it is after writing and reading it as JSON.
std::string valid_utf8(const std::string& text);

}  // namespace blockscope
