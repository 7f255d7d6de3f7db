#include "probe/strategies/wino.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "probe/strategies/strategy_table.h"

namespace blockscope {
namespace {

/// The `count` positions that come first by `before` of their values, ties to the lower one.
template <typename Before>
std::vector<int64_t> first_of(std::vector<int64_t> positions, const std::vector<double>& values,
                              size_t count, Before before) {
  std::stable_sort(positions.begin(), positions.end(), [&](int64_t a, int64_t b) {
    return before(values[static_cast<size_t>(a)], values[static_cast<size_t>(b)]);
  });
  positions.resize(std::min(count, positions.size()));
  std::sort(positions.begin(), positions.end());
  return positions;
}

}  // namespace

std::vector<int64_t> wino_wide_in(const std::vector<double>& confidence,
                                  const std::vector<bool>& masked, double threshold) {
  std::vector<int64_t> masks;
  std::vector<int64_t> sure;
  for (size_t p = 0; p < masked.size(); ++p) {
    if (!masked[p]) continue;
    masks.push_back(static_cast<int64_t>(p));
    if (confidence[p] > threshold) sure.push_back(static_cast<int64_t>(p));
  }
  if (sure.empty()) return first_of(masks, confidence, 1, std::greater<>());
  // The official code computes this product in float32, too.
  const auto share = static_cast<int64_t>(static_cast<float>(masks.size()) * 0.7F);
  const int64_t most = std::clamp<int64_t>(share, 5, 20);
  return first_of(sure, confidence, static_cast<size_t>(most), std::greater<>());
}

std::vector<int64_t> wino_narrow_out(const std::vector<double>& shadow_confidence,
                                     const std::vector<bool>& decided, double threshold_back,
                                     int64_t accepted, int64_t last_accepted) {
  std::vector<int64_t> doubted;
  if (accepted < 2) return doubted;
  for (size_t p = 0; p < decided.size(); ++p) {
    if (decided[p] && shadow_confidence[p] < threshold_back) {
      doubted.push_back(static_cast<int64_t>(p));
    }
  }
  if (static_cast<int64_t>(doubted.size()) < last_accepted) return doubted;
  const auto most = static_cast<size_t>(std::max<int64_t>(last_accepted - 1, 0));
  return first_of(doubted, shadow_confidence, most, std::less<>());
}

StrategyEntry wino_entry() {
  StrategyEntry entry;
  entry.name = "wino";
  entry.example = "wino,threshold=0.6,threshold_back=0.9";
  entry.meaning = "many positions at a step; a second look takes unlikely tokens back";
  entry.source = "WINO, arXiv 2507.18578; LLaDA/decoding.py:decoding_wino";
  entry.options = {
      with_default(threshold_option("confidence that a position must be above"), "0.6"),
      real_option("threshold_back", &UnmaskingOptions::threshold_back, {0.0, 1.0, true},
                  "probability below which a second look takes a token back")};
  entry.distributions = true;
  entry.second_look = true;
  entry.text = [](const UnmaskingOptions& options) {
    return fmt::format(", taken back below {:g}", options.threshold_back);
  };
  entry.refuses = [](const StrategySite& site) -> std::string {
    if (!site.bidirectional) {
      return "takes a second look at the block's tokens, which is defined for bidirectional models "
             "(LLaDA) only. HINT: klass and low_confidence_dynamic also take several tokens a step";
    }
    if (site.logit_shift) {
      return "is not defined for a model with a token shift (Dream): the position before the block "
             "has no second look. HINT: klass also takes several tokens a step";
    }
    if (!site.keeps_nothing) {
      return fmt::format(
          "takes tokens back, so no key may be kept, got the cache {}. HINT: use the cache none",
          site.cache);
    }
    return "";
  };
  entry.select = [](StrategyStep& step) {
    return wino_wide_in(step.score, step.masked, step.options.threshold);
  };
  return entry;
}

}  // namespace blockscope
