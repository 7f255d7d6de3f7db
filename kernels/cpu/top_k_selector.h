// Keeps the k best of a stream of (probability, position) pairs with rising positions.
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

  // Takes (probabilities[i], first + i) for i < count. Probabilities are >= 0 or NaN; NaN ranks
  // last. Positions must rise from call to call. Of equal probabilities, the lower position is
  // kept. `guess`: an estimate of the k-th best, such as that of a similar stream; a wrong one
  // costs only time. Returns whether the guess was useful.
  bool push_range(const float* probabilities, int64_t count, int32_t first, float guess = -1.0f);

  // The k-th best so far; -1 if there are fewer than k.
  float kth();

  // Sets bit (position % 64) of bits[position / 64] for each of the k best.
  void mark(uint64_t* bits);

  // Writes the k best by falling probability, ties to the lower position. -1 and 0 fill the rest.
  void write(int32_t* index, float* probability);

 private:
  // Without it, a small k would shrink at every second range.
  static constexpr std::size_t kSlack = 64;
  static constexpr int64_t kRange = 1024;  // pairs that push_range takes at a time

  static float to_probability(int32_t rank);
  // Takes one range and returns how many pairs passed the bound.
  int64_t take(const float* probabilities, int64_t count, int32_t first, float bound);
  void shrink();
  void drop_last_of(int32_t rank);  // until only k are left
  void raise_bound(const float* probabilities, int64_t count);

  std::size_t k_ = 0;
  float bound_ = -1.0f;  // no smaller probability is among the k best
  // The k best are among the first size_ of these, which are by rising position.
  std::size_t size_ = 0;
  std::vector<int32_t> ranks_;
  std::vector<int32_t> positions_;
};

}  // namespace blockscope
