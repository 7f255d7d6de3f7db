// The convolutions of a DFlash 2 draft (`dflash/model.py:GroupedDynamicCausalConv`). One mixes the
// rows that enter a part of a layer, and one mixes the rows that leave it. A row is mixed with the
// rows before it in its block, never with context features:
//   y[i, c] = sum over taps t of (base[t, c] + delta[i, t, group of c]) * x[i - t, c],
// where x is zero before the block. Both deltas are projections of the row that enters.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

#include "probe/model/linear.h"

namespace blockscope {

class GroupedConv {
 public:
  /// No convolution.
  GroupedConv() = default;
  /// base [2, taps, hidden_size]: of the entering and of the leaving rows; projection
  /// [2 * taps * groups, hidden_size]; `group`: channels of a group.
  GroupedConv(const at::Tensor& base, at::Tensor projection, int64_t group);

  bool defined() const { return base_.defined(); }
  /// x [S, T, hidden_size], T rows of a block -> the same shape: `part` of the mixed rows, mixed
  /// again. Without a convolution, `part` of x.
  at::Tensor around(const at::Tensor& x,
                    const std::function<at::Tensor(const at::Tensor&)>& part) const;
  void pack() { projection_.pack(); }

 private:
  at::Tensor base_;    // [2, taps, groups, group]
  Linear projection_;  // [2 * taps * groups, hidden_size]
};

}  // namespace blockscope
