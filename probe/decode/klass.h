// KLASS: a position takes its token when it is sure and its distribution has stopped moving.
// Source: KLASS, arXiv 2511.05664; shkim0116/KLASS `src/model/llada_klass.py:
// stable_confident_decode`, alg "klass", unmask_strategy "all". Softmax and KL are float64.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace blockscope {

/// What one sequence remembers from step to step of a block. The authors' code keeps one history
/// over all blocks, which a model that has not seen a block before cannot have: here each block
/// begins anew, as their first block does.
class KlassMemory {
 public:
  /// Takes in a step's distributions [B, V] float64 -> KL(now || step before) of each position in
  /// nats, both under a logarithm with 1e-12 added. Before a block's first step all probabilities
  /// count as 0, so its KL is near 27.6 nats less the entropy. Steps of a block come in order.
  /// `predicted` [B]: positions that the step predicts; empty: all. The others keep what they have,
  /// their KL is NaN.
  std::vector<double> update(int64_t block, const at::Tensor& probability,
                             const std::vector<bool>& predicted = {});

  /// Whether a position has been predicted at `history` steps of the block and the KL of each of
  /// the last was below `threshold`, for each position.
  std::vector<bool> stable(double threshold, int64_t history) const;

 private:
  int64_t block_ = -1;
  at::Tensor previous_;                  // [B, V] float64
  std::vector<std::vector<double>> kl_;  // [B], oldest first
};

/// Masked positions that are stable with `confidence` > `threshold`; without any, the `due` most
/// confident masked ones, ties to the lower position. Ascending.
std::vector<int64_t> select_klass(const std::vector<double>& confidence,
                                  const std::vector<bool>& stable, const std::vector<bool>& masked,
                                  double threshold, int64_t due);

}  // namespace blockscope
