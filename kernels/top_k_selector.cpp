#include "kernels/top_k_selector.h"

#include <algorithm>
#include <cstddef>

namespace blockscope {

void TopKSelector::shrink() {
  const auto kth = entries_.begin() + static_cast<std::ptrdiff_t>(k_ - 1);
  std::nth_element(entries_.begin(), kth, entries_.end(), better);
  threshold_ = rank(kth->probability);
  has_threshold_ = true;
  entries_.resize(k_);
}

void TopKSelector::write(int32_t* index, float* probability) {
  if (entries_.size() > k_) shrink();
  std::sort(entries_.begin(), entries_.end(), better);
  for (std::size_t i = 0; i < k_; ++i) {
    index[i] = i < entries_.size() ? entries_[i].position : -1;
    probability[i] = i < entries_.size() ? entries_[i].probability : 0.0f;
  }
}

}  // namespace blockscope
