// Index lists on the command line, the same for all options: A, A-B, or several with commas.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace blockscope {

/// "0-3,7" -> {0, 1, 2, 3, 7}, ascending and distinct, each in [first, end); `end` -1: unknown. A
/// range includes both ends. Empty text gives an empty list. Throws UsageError that names `flag`.
std::vector<int64_t> parse_index_set(const std::string& text, const std::string& flag,
                                     int64_t first, int64_t end = -1);

}  // namespace blockscope
