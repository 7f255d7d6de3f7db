#include "decode_record/schema/reuse_rule.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "decode_record/base/error.h"

namespace blockscope {

ReuseCount parse_reuse_count(std::string_view where, std::string_view name) {
  const auto* const found = std::ranges::find(kReuseCounts, name);
  if (found == kReuseCounts.end()) {
    throw UsageError(
        fmt::format("{}: expected {}, got {}", where, fmt::join(kReuseCounts, " or "), name));
  }
  return static_cast<ReuseCount>(found - kReuseCounts.begin());
}

}  // namespace blockscope
