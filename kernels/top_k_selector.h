// Keeps the k best of a stream of (probability, position) pairs that come by rising position.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace blockscope {

class TopKSelector {
 public:
  explicit TopKSelector(int64_t k) : k_(static_cast<std::size_t>(k)) {}

  // Probabilities are >= 0 or NaN, which ranks last. Positions must rise from call to call: on
  // equal probability the lower one is kept.
  void push(float probability, int32_t position) {
    const uint32_t rank = to_rank(probability);
    if (rank <= threshold_) return;
    entries_.push_back(uint64_t{rank} << 32 | (~static_cast<uint32_t>(position)));
    if (entries_.size() >= 2 * k_ + kSlack) shrink();
  }

  // push(probabilities[i], first + i) for i < count, without looking at most of them twice.
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
  // Small k would otherwise shrink at every second push.
  static constexpr std::size_t kSlack = 64;
  static constexpr int64_t kRange = 1024;  // of push_range, at a time
  static constexpr uint32_t kNaNRank = 1;  // 0 is the threshold that lets everything pass

  // Non-negative floats are ordered like their bits.
  static uint32_t to_rank(float probability) {
    if (!(probability >= 0.0f)) return kNaNRank;
    uint32_t bits = 0;
    std::memcpy(&bits, &probability, sizeof bits);
    return (bits & 0x7fffffffu) + kNaNRank + 1;
  }
  static float to_probability(uint32_t rank);
  void shrink();
  void raise_bound(const float* probabilities, int64_t count);
  bool raise_bound_to(float guess, const float* probabilities, int64_t count);

  std::size_t k_;
  float bound_ = -1.0f;            // the k-th best of the whole stream is at least this
  uint32_t threshold_ = 0;         // rank of the k-th best so far, once there are k
  std::vector<uint64_t> entries_;  // rank, then the complement of the position: larger is better
};

}  // namespace blockscope
