// Keeps the k best of a stream of (probability, position) pairs that come by rising position.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace blockscope {

class TopKSelector {
 public:
  explicit TopKSelector(int64_t k) { restart(k); }

  // Forgets the stream and keeps the memory.
  void restart(int64_t k);

  // Takes (probabilities[i], first + i) for i < count. Probabilities are >= 0 or NaN, which ranks
  // last. Positions must rise from call to call: on equal probability the lower one is kept.
  // `guess`: what the k-th best may be, from a stream like this one; a wrong one costs time alone.
  // Returns whether it served.
  bool push_range(const float* probabilities, int64_t count, int32_t first, float guess = -1.0f);

  // The k-th best so far; -1 while there are fewer.
  float kth();

  // Sets bit (position % 64) of bits[position / 64] for each of the k best.
  void mark(uint64_t* bits);

  // Writes the k best by falling probability, ties to the lower position; -1 and 0 behind the last.
  void write(int32_t* index, float* probability);

 private:
  // Small k would otherwise shrink at every second range.
  static constexpr std::size_t kSlack = 64;
  static constexpr int64_t kRange = 1024;  // of push_range, at a time

  static float to_probability(int32_t rank);
  // Takes one range -> how many passed the bound.
  int64_t take(const float* probabilities, int64_t count, int32_t first, float bound);
  void shrink();
  void drop_last_of(int32_t rank);  // until k are left
  void raise_bound(const float* probabilities, int64_t count);

  std::size_t k_ = 0;
  float bound_ = -1.0f;  // none below this is among the k best
  // The k best are among the first size_ of these, which stand by rising position.
  std::size_t size_ = 0;
  std::vector<int32_t> ranks_;
  std::vector<int32_t> positions_;
};

}  // namespace blockscope
