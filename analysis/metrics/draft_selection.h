// What the selector of a DFlash 2 draft did at reached positions. Internal to the metric `draft`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "analysis/metrics/draft_counts.h"

namespace blockscope {

class DraftSelection {
 public:
  /// A reached block position, from 1. `chosen`, `target`: the candidates that the selector and the
  /// target took, from 0, the most probable; target -1: none of them.
  void add(std::size_t position, std::int32_t chosen, std::int32_t target, bool accepted);
  /// `selector`, `among_candidates` and `by_chosen`, as docs/drafts.md names them. `positions`: the
  /// drafted positions of a block.
  std::vector<ResultArray> arrays(std::size_t positions) const;

 private:
  // "accepted" stands for what is counted.
  AcceptedShare target_there_;    // the target's token was a candidate
  AcceptedShare chose_another_;   // than the most probable candidate
  AcceptedShare kept_, changed_;  // accepted, where it chose the most probable one, and another
  AcceptedShare best_was_right_;  // the target took the most probable one; it chose another
  std::vector<AcceptedShare> target_there_by_position_, by_chosen_;
};

}  // namespace blockscope
