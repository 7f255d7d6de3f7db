// Words of messages that depend on a number.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace blockscope {

/// "1 row", "2 rows", "0 rows"; `many` if an s is not enough: plural(n, "pass", "passes").
inline std::string plural(std::int64_t count, std::string_view one, std::string_view many = "") {
  std::string text = std::to_string(count);
  text.append(" ").append(count == 1 || many.empty() ? one : many);
  if (count != 1 && many.empty()) text.append("s");
  return text;
}

}  // namespace blockscope
