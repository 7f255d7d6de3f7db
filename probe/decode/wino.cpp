#include "probe/decode/wino.h"

#include <algorithm>
#include <functional>

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
  // As the official code writes it: the product is a float32 there.
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

}  // namespace blockscope
