// The selector of a DFlash 2 draft (`dflash/model.py:CandidateSelector`). Each slot of a block has
// C candidates, its best tokens. The selector walks through the slots from the certain token, and
// takes at each one the candidate b with the largest score after the token a that it took before:
//   score(a, b) = logit(b) + <A[a] * P h, B[b]>,
// where h is the slot's hidden state.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "probe/model/linear.h"

namespace blockscope {

/// The C best tokens of each row, [.., C] by falling logit. Equal logits are in any order.
struct BestCandidates {
  at::Tensor token;  // int64
  at::Tensor logit;
};
/// logits [R, V] with a contiguous last dimension, on any device.
BestCandidates best_candidates(const at::Tensor& logits, int64_t count);

/// A path through the candidates of L slots, on the host.
struct SelectorPath {
  at::Tensor token;             // [S, L, C] int64
  at::Tensor score;             // [S, L, C] float32, after the token that was taken before
  std::vector<int64_t> chosen;  // [S * L] the candidate with the largest score
};

class CandidateSelector {
 public:
  /// No selector.
  CandidateSelector() = default;
  /// predecessor (A), successor (B) [V, rank]; hidden_projection (P) [rank, hidden_size].
  CandidateSelector(at::Tensor predecessor, at::Tensor successor, at::Tensor hidden_projection);

  bool defined() const { return predecessor_.defined(); }
  /// hidden [S, L, hidden_size]; candidates [S, L, C] with their final logits; certain [S] int64,
  /// the token before the first slot. Scores are float32. Among equal scores the candidate with the
  /// larger logit wins.
  SelectorPath walk(const at::Tensor& hidden, const BestCandidates& candidates,
                    const at::Tensor& certain) const;

 private:
  at::Tensor predecessor_, successor_;
  Linear projection_;
};

}  // namespace blockscope
