// Keeps the k best of a stream of (probability, position) pairs that come by rising position.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace blockscope {

class TopKSelector {
 public:
  explicit TopKSelector(int64_t k) : k_(static_cast<std::size_t>(k)) {}

  // Positions must rise from call to call: on equal probability the lower one is kept.
  void push(float probability, int32_t position) {
    if (has_threshold_ && !(rank(probability) > threshold_)) return;
    entries_.push_back({probability, position});
    if (entries_.size() >= 2 * k_ + kSlack) shrink();
  }

  // Writes the k best by falling probability, ties to the lower position; -1 and 0 behind the last.
  void write(int32_t* index, float* probability);

 private:
  struct Entry {
    float probability = 0.0f;
    int32_t position = 0;
  };

  // Small k would otherwise shrink at every second push.
  static constexpr std::size_t kSlack = 64;

  // NaN ranks below every probability.
  static float rank(float probability) { return probability >= 0.0f ? probability : -1.0f; }
  static bool better(const Entry& a, const Entry& b) {
    const float rank_a = rank(a.probability);
    const float rank_b = rank(b.probability);
    return rank_a != rank_b ? rank_a > rank_b : a.position < b.position;
  }
  void shrink();

  std::size_t k_;
  bool has_threshold_ = false;
  float threshold_ = 0.0f;  // rank of the k-th best so far
  std::vector<Entry> entries_;
};

}  // namespace blockscope
