#include "kernels/cpu/top_k_selector.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <limits>

#include "kernels/simd/tile_kernels.h"

namespace blockscope {

void TopKSelector::restart(int64_t k) {
  k_ = static_cast<std::size_t>(k);
  bound_ = -1.0f;
  size_ = 0;
}

float TopKSelector::to_probability(int32_t rank) {
  if (rank == kNaNRank) return std::numeric_limits<float>::quiet_NaN();
  const int32_t bits = rank - kNaNRank - 1;
  float probability = 0.0f;
  std::memcpy(&probability, &bits, sizeof probability);
  return probability;
}

int64_t TopKSelector::take(const float* probabilities, int64_t count, int32_t first, float bound) {
  const std::size_t room = size_ + static_cast<std::size_t>(count + kMaxLanes);
  if (ranks_.size() < room) {
    ranks_.resize(room);
    positions_.resize(room);
  }
  return best_tile_kernels().pass_not_below(probabilities, count, bound, first,
                                            ranks_.data() + size_, positions_.data() + size_);
}

void TopKSelector::shrink() {
  const TileKernels& kernels = best_tile_kernels();
  const auto size = static_cast<int64_t>(size_);
  const int32_t bound = kernels.splitting_bound(ranks_.data(), size, static_cast<int64_t>(k_));
  size_ = static_cast<std::size_t>(
      kernels.keep_reaching(ranks_.data(), positions_.data(), size, bound));
  if (size_ > k_) drop_last_of(bound);
  // A later one with equal rank has a higher position.
  bound_ = std::max(bound_, to_probability(bound + 1));
}

void TopKSelector::drop_last_of(int32_t rank) {
  const auto end = ranks_.begin() + static_cast<std::ptrdiff_t>(size_);
  auto equal = std::count(ranks_.begin(), end, rank) - static_cast<std::ptrdiff_t>(size_ - k_);
  std::size_t kept = 0;
  for (std::size_t i = 0; i < size_; ++i) {
    if (ranks_[i] == rank && equal-- <= 0) continue;
    ranks_[kept] = ranks_[i];
    positions_[kept++] = positions_[i];
  }
  size_ = kept;
}

// A lower bound of the k-th best: the k-th largest of the maxima of at least k disjoint groups.
// Groups are strided, so neighbours with large probabilities are in different groups. A NaN loses
// every comparison. A group of only NaN keeps -1, which is below every probability.
void TopKSelector::raise_bound(const float* probabilities, int64_t count) {
  const auto k = static_cast<int64_t>(k_);
  const int64_t members = count / (2 * k);
  if (members < 2) return;  // the groups would be too small for a useful bound
  const int64_t groups = count / members;
  std::array<float, kRange / 2> largest;
  std::fill_n(largest.begin(), groups, -1.0f);
  for (int64_t member = 0; member < members; ++member) {
    const float* p = probabilities + member * groups;
    best_tile_kernels().keep_larger(p, groups, largest.data());
  }
  // None of them is NaN or -0, and -1 is also the smallest as an integer.
  std::array<int32_t, kRange / 2> bits;
  std::memcpy(bits.data(), largest.data(), static_cast<std::size_t>(groups) * sizeof(float));
  const int32_t least = best_tile_kernels().splitting_bound(bits.data(), groups, k);
  if (least < 0) return;
  float bound = 0.0f;
  std::memcpy(&bound, &least, sizeof bound);
  bound_ = std::max(bound_, bound);
}

float TopKSelector::kth() {
  if (size_ < k_) return -1.0f;
  if (size_ > k_) shrink();
  return to_probability(
      *std::min_element(ranks_.begin(), ranks_.begin() + static_cast<int64_t>(k_)));
}

bool TopKSelector::push_range(const float* probabilities, int64_t count, int32_t first,
                              float guess) {
  const auto k = static_cast<int64_t>(k_);
  const auto many = static_cast<int64_t>(2 * k_ + kSlack);
  bool served = guess >= 0.0f;
  for (int64_t begin = 0; begin < count; begin += kRange) {
    const float* p = probabilities + begin;
    const int64_t part = std::min(kRange, count - begin);
    const int32_t position = first + static_cast<int32_t>(begin);
    const bool guesses = guess > bound_;
    if (!guesses && bound_ < 0.0f) raise_bound(p, part);
    int64_t passed = take(p, part, position, guesses ? guess : bound_);
    if (guesses && passed >= k) {
      bound_ = guess;
      served = served && passed <= 2 * many;
    } else if (guesses) {  // the guess was too high: left-out pairs may belong to the k best
      served = false;
      if (bound_ < 0.0f) raise_bound(p, part);
      passed = take(p, part, position, bound_);
    }
    size_ += static_cast<std::size_t>(passed);
    if (static_cast<int64_t>(size_) >= many) shrink();
  }
  return served;
}

void TopKSelector::mark(uint64_t* bits) {
  if (size_ > k_) shrink();
  for (std::size_t i = 0; i < size_; ++i) {
    const auto position = static_cast<uint32_t>(positions_[i]);
    bits[position / 64] |= uint64_t{1} << (position % 64);
  }
}

void TopKSelector::write(int32_t* index, float* probability) {
  if (size_ > k_) shrink();
  std::vector<uint64_t> order(size_);  // rank, then the complement of the position
  for (std::size_t i = 0; i < size_; ++i) {
    order[i] =
        uint64_t{static_cast<uint32_t>(ranks_[i])} << 32 | ~static_cast<uint32_t>(positions_[i]);
  }
  std::sort(order.begin(), order.end(), std::greater<>());
  for (std::size_t i = 0; i < k_; ++i) {
    const bool found = i < order.size();
    index[i] = found ? static_cast<int32_t>(~static_cast<uint32_t>(order[i])) : -1;
    probability[i] = found ? to_probability(static_cast<int32_t>(order[i] >> 32)) : 0.0f;
  }
}

}  // namespace blockscope
