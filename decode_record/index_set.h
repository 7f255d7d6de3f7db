// Index lists on the command line: "0-3,7,10-" (the last needs a known end).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace blockscope {

/// "0-3,7" -> {0, 1, 2, 3, 7}, ascending and distinct, each in [first, end); "5-" runs to the end
/// when `end` is known (>= 0). Empty text gives an empty list. Throws UsageError naming `flag`.
std::vector<int64_t> parse_index_set(const std::string& text, const std::string& flag,
                                     int64_t first, int64_t end = -1);

}  // namespace blockscope
