#include "kernels/top_k_selector.h"

#include <algorithm>
#include <functional>
#include <limits>

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
  entries_.resize(k_);
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
