// Text from files, checkpoints and models on its way to a terminal.
#pragma once

#include <string>
#include <string_view>

namespace blockscope {

/// UTF-8 text without anything that steers a terminal: control characters (C0 except newline and
/// tab, DEL, C1), and bytes that are no UTF-8, become \xNN.
std::string printable(std::string_view text);

}  // namespace blockscope
