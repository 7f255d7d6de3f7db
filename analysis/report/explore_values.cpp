#include "analysis/report/explore_values.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>

#include "analysis/report/trajectory.h"

namespace blockscope {
namespace {

constexpr std::string_view kDigits =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
constexpr double kLargestCode = 4094.0;  // the last of 64 * 64 codes is NaN

/// `share` from 0 to 1.
void add_code(double share, std::string& codes) {
  const auto code = static_cast<std::size_t>(
      std::isfinite(share) ? std::lround(std::clamp(share, 0.0, 1.0) * kLargestCode) : 4095);
  codes += kDigits[code / 64];
  codes += kDigits[code % 64];
}

template <typename Value>
nlohmann::json coded_values(std::span<const Value> values) {
  double least = 0.0;
  double greatest = 0.0;
  bool any = false;
  for (const Value value : values) {
    const auto number = static_cast<double>(value);
    if (!std::isfinite(number)) continue;
    least = any ? std::min(least, number) : number;
    greatest = any ? std::max(greatest, number) : number;
    any = true;
  }
  const double range = greatest > least ? greatest - least : 1.0;
  std::string codes;
  for (const Value value : values) add_code((static_cast<double>(value) - least) / range, codes);
  return {{"least", least}, {"greatest", least + range}, {"codes", codes}};
}

}  // namespace

nlohmann::json coded(std::span<const double> values) { return coded_values(values); }
nlohmann::json coded(std::span<const float> values) { return coded_values(values); }

std::string coded_weights(std::span<const float> weights) {
  std::string codes;
  for (const float weight : weights) add_code(std::sqrt(static_cast<double>(weight)), codes);
  return codes;
}

std::string choice_key(std::size_t layer, std::optional<std::size_t> head) {
  return head ? fmt::format("{},{}", layer, *head) : fmt::format("{}", layer);
}

std::size_t PageTexts::index(std::int64_t token) {
  const auto [at, is_new] = known_.emplace(token, texts_.size());
  if (is_new) {
    texts_.push_back(token_text(trace_, token));
    if (ends_text_.contains(token)) ends_.push_back(at->second);
  }
  return at->second;
}

}  // namespace blockscope
