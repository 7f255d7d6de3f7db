// The random stream of the task generator: SplitMix64, with the same numbers on every platform. The
// top bit of a stream's number is the split (training or test). The map from stream number to state
// is a bijection of 64-bit integers, so two streams always start in different states.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace blockscope {

enum class TaskSplit { kTrain, kTest };

class TaskRandom {
 public:
  /// One stream per (split, seed, index); seed < 2^23, index < 2^40.
  TaskRandom(TaskSplit split, std::uint64_t seed, std::uint64_t index)
      : state_(mix((split == TaskSplit::kTest ? std::uint64_t{1} << 63 : 0) |
                   ((seed & 0x7fffff) << 40) | (index & 0xffffffffff))) {}

  std::uint64_t next() { return mix(state_ += 0x9e3779b97f4a7c15); }

  /// Uniform in [0, bound); bound > 0. The modulo bias is below 2^-40 for the bounds used here.
  std::size_t below(std::size_t bound) { return static_cast<std::size_t>(next() % bound); }
  /// Uniform in [low, high], both included.
  std::size_t between(std::size_t low, std::size_t high) { return low + below(high - low + 1); }
  /// Uniform in [0, 1).
  double uniform() { return static_cast<double>(next() >> 11) * 0x1.0p-53; }

  template <class T>
  void shuffle(std::vector<T>& items) {
    for (std::size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[below(i)]);
  }

  std::uint64_t state() const { return state_; }

 private:
  /// The finaliser of SplitMix64 (Steele et al. 2014); a bijection.
  static std::uint64_t mix(std::uint64_t z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }

  std::uint64_t state_;
};

}  // namespace blockscope
