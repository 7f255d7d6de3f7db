// Makes text from files, checkpoints and models safe for a terminal.
#pragma once

#include <string>
#include <string_view>

namespace blockscope {

/// Replaces by \xNN what could steer a terminal: control characters (C0 except newline and tab,
/// DEL, C1), and bytes that are not UTF-8.
std::string printable(std::string_view text);

}  // namespace blockscope
