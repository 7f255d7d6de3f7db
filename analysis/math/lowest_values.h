// A low percentile of a stream, with numpy's exact result. It keeps only the smallest values: as
// many as the percentile of the expected number of values can need.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace blockscope {

class LowestValues {
 public:
  LowestValues() = default;
  /// `share` in [0, 1]; `most`: at least as many values as will be added.
  LowestValues(double share, std::int64_t most)
      : share_(share),
        capacity_(static_cast<std::size_t>(std::ceil(share * static_cast<double>(most))) + 2) {}

  void add(double value) {
    ++count_;
    if (heap_.size() < capacity_) {
      heap_.push_back(value);
      std::push_heap(heap_.begin(), heap_.end());
    } else if (value < heap_.front()) {
      std::pop_heap(heap_.begin(), heap_.end());
      heap_.back() = value;
      std::push_heap(heap_.begin(), heap_.end());
    }
  }

  /// numpy.percentile(values, 100 * share), linear interpolation; NaN without values.
  double percentile() const {
    if (count_ == 0) return std::numeric_limits<double>::quiet_NaN();
    std::vector<double> sorted = heap_;
    std::sort(sorted.begin(), sorted.end());
    const double at = share_ * static_cast<double>(count_ - 1);
    const auto below = static_cast<std::size_t>(at);
    const std::size_t above = std::min(below + 1, sorted.size() - 1);
    return sorted.at(below) + (sorted.at(above) - sorted.at(below)) * (at - std::floor(at));
  }

 private:
  double share_ = 0.0;
  std::size_t capacity_ = 2;
  std::int64_t count_ = 0;
  std::vector<double> heap_;  ///< max-heap of the smallest `capacity_` values
};

}  // namespace blockscope
