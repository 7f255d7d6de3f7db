#include "kernels/top_k_selector.h"

#include <algorithm>
#include <array>
#include <functional>
#include <limits>

#include "kernels/tile_kernels.h"

namespace blockscope {

float TopKSelector::to_probability(uint32_t rank) {
  if (rank == kNaNRank) return std::numeric_limits<float>::quiet_NaN();
  const uint32_t bits = rank - kNaNRank - 1;
  float probability = 0.0f;
  std::memcpy(&probability, &bits, sizeof probability);
  return probability;
}

void TopKSelector::shrink() {
  const auto kth = entries_.begin() + static_cast<std::ptrdiff_t>(k_ - 1);
  std::nth_element(entries_.begin(), kth, entries_.end(), std::greater<>());
  threshold_ = static_cast<uint32_t>(*kth >> 32);
  if (threshold_ != kNaNRank) bound_ = std::max(bound_, to_probability(threshold_));
  entries_.resize(k_);
}

// A lower bound of the k-th best: the k-th largest of the maxima of at least k disjoint groups. The
// groups are strided, so that neighbours with large probabilities fall into different ones. A NaN
// loses every comparison; a group of nothing else keeps -1, below every probability.
void TopKSelector::raise_bound(const float* probabilities, int64_t count) {
  const auto k = static_cast<int64_t>(k_);
  const int64_t members = count / (2 * k);
  if (members < 2) return;  // the groups would be too small to say much
  const int64_t groups = count / members;
  std::array<float, kRange / 2> largest;
  std::fill_n(largest.begin(), groups, -1.0f);
  for (int64_t member = 0; member < members; ++member) {
    const float* p = probabilities + member * groups;
    best_tile_kernels().keep_larger(p, groups, largest.data());
  }
  const auto kth = largest.begin() + (k - 1);
  std::nth_element(largest.begin(), kth, largest.begin() + groups, std::greater<>());
  bound_ = std::max(bound_, *kth);
}

// Whether at least k are not below the guess, and not so many that it says little: then it is a
// lower bound of the k-th best.
bool TopKSelector::raise_bound_to(float guess, const float* probabilities, int64_t count) {
  if (guess <= bound_) return guess >= 0.0f;
  const int64_t reached = best_tile_kernels().count_not_below(probabilities, count, guess);
  const auto k = static_cast<int64_t>(k_);
  if (reached < k || reached > 4 * k + static_cast<int64_t>(kSlack)) return false;
  bound_ = guess;
  return true;
}

float TopKSelector::kth() {
  if (entries_.size() < k_) return -1.0f;
  if (entries_.size() > k_) shrink();
  const auto least = std::min_element(entries_.begin(), entries_.end());
  return to_probability(static_cast<uint32_t>(*least >> 32));
}

bool TopKSelector::push_range(const float* probabilities, int64_t count, int32_t first,
                              float guess) {
  bool served = true;
  std::array<int32_t, kRange + kMaxLanes> passed;
  for (int64_t begin = 0; begin < count; begin += kRange) {
    const float* p = probabilities + begin;
    const int64_t part = std::min(kRange, count - begin);
    const bool serves = raise_bound_to(guess, p, part);
    served = served && serves;
    if (!serves && bound_ < 0.0f) raise_bound(p, part);
    const int64_t num_passed = best_tile_kernels().not_below(p, part, bound_, passed.data());
    for (int64_t i = 0; i < num_passed; ++i) {
      const int32_t at = passed[static_cast<std::size_t>(i)];
      push(p[at], first + static_cast<int32_t>(begin) + at);
    }
  }
  return served;
}

void TopKSelector::mark(uint64_t* bits) {
  if (entries_.size() > k_) shrink();
  for (const uint64_t entry : entries_) {
    const uint32_t position = ~static_cast<uint32_t>(entry);
    bits[position / 64] |= uint64_t{1} << (position % 64);
  }
}

void TopKSelector::write(int32_t* index, float* probability) {
  if (entries_.size() > k_) shrink();
  std::sort(entries_.begin(), entries_.end(), std::greater<>());
  for (std::size_t i = 0; i < k_; ++i) {
    const bool found = i < entries_.size();
    index[i] = found ? static_cast<int32_t>(~static_cast<uint32_t>(entries_[i])) : -1;
    probability[i] = found ? to_probability(static_cast<uint32_t>(entries_[i] >> 32)) : 0.0f;
  }
}

}  // namespace blockscope
