#include "analysis/metrics/pair_cosines.h"

#include <algorithm>
#include <cmath>

namespace blockscope {

void PairCosines::add(const StepView& step, Field field, std::size_t columns) {
  const ArrayView before = step.previous(field);
  if (before.empty()) return;
  thread_local std::vector<CosineSum> sums;
  Last& last = last_.at(step.layer());
  last.squares.known = last.squares.known && last.step == step.previous();
  last.step = &step.now();
  sum_cosines(before, step.now(field), columns, step.previous_valid(), step.valid(), sums,
              &last.squares);
  LeftOutOfLayer& left = left_.at(step.layer());
  for (std::size_t column = 0; column < columns; ++column) {
    const CosineSum& sum = sums[column];
    left.non_finite += sum.non_finite;
    left.zero += sum.zero;
    if (sum.terms == 0) continue;
    grid_.add(step.layer(), column, step.previous()->step, sum.sum / static_cast<double>(sum.terms),
              sum.terms);
  }
}

void PairCosines::add_means(const StepView& step, Field field) {
  if (step.previous() == nullptr) return;
  std::int64_t terms = 0;
  for (std::size_t i = 0; i < step.valid().size(); ++i) {
    terms += step.valid()[i] != 0 && step.previous_valid()[i] != 0 ? 1 : 0;
  }
  const std::span<const float> means = step.now(field).floats();
  for (std::size_t column = 0; column < means.size(); ++column) {
    if (!std::isfinite(means[column])) {
      left_.at(step.layer()).non_finite += terms;
    } else if (terms > 0) {
      grid_.add(step.layer(), column, step.previous()->step, double{means[column]}, terms);
    }
  }
}

void PairCosines::count_left_out(LeftOut& counts) const {
  for (const LeftOutOfLayer& layer : left_) {
    counts[kNonFinite] += layer.non_finite;
    counts[kZeroVector] += layer.zero;
  }
}

}  // namespace blockscope
