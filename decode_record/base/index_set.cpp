#include "decode_record/base/index_set.h"

#include <fmt/format.h>

#include <charconv>
#include <set>
#include <sstream>

#include "decode_record/base/error.h"

namespace blockscope {
namespace {

constexpr int64_t kLongestRange = 1'000'000;  // a typo must not fill the memory

[[noreturn]] void refuse(const std::string& flag, const std::string& part,
                         const std::string& expected) {
  throw UsageError(
      fmt::format("{}: expected {}, got '{}'. HINT: A, A-B or a list of them such as 0-3,7", flag,
                  expected, part));
}

int64_t parse_number(const std::string& text, const std::string& flag, const std::string& part) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) {
    refuse(flag, part, "a number or a range of numbers");
  }
  return value;
}

}  // namespace

std::vector<int64_t> parse_index_set(const std::string& text, const std::string& flag,
                                     int64_t first, int64_t end) {
  std::set<int64_t> indices;
  std::istringstream parts(text);
  std::string part;
  while (std::getline(parts, part, ',')) {
    const size_t dash = part.find('-', 1);
    const int64_t low = parse_number(part.substr(0, dash), flag, part);
    int64_t high = low;
    if (dash != std::string::npos) {
      const std::string upper = part.substr(dash + 1);
      if (upper.empty()) refuse(flag, part, "a range with both ends");
      high = parse_number(upper, flag, part);
    }
    if (low < first || high < low || (end >= 0 && high >= end) || high - low > kLongestRange) {
      refuse(flag, part,
             end >= 0 ? fmt::format("indices in [{}, {})", first, end)
                      : fmt::format("indices from {}, lower end first", first));
    }
    for (int64_t index = low; index <= high; ++index) indices.insert(index);
  }
  if (!text.empty() && indices.empty()) refuse(flag, text, "at least one index");
  return {indices.begin(), indices.end()};
}

}  // namespace blockscope
