#include "analysis/metrics/pair_cosines.h"

#include <cstdint>
#include <span>

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
  const std::span<const std::uint8_t> valid = step.valid();
  const std::span<const std::uint8_t> before = step.previous_valid();
  std::int64_t terms = 0;
  for (std::size_t i = 0; i < valid.size(); ++i) terms += valid[i] != 0 && before[i] != 0 ? 1 : 0;
  const std::int64_t missing =
      grid_.add_row(step.layer(), step.previous()->step, step.now(field).floats(), terms);
  left_.at(step.layer()).non_finite += missing * terms;
}

void PairCosines::count_left_out(LeftOut& counts) const {
  for (const LeftOutOfLayer& layer : left_) {
    counts[kNonFinite] += layer.non_finite;
    counts[kZeroVector] += layer.zero;
  }
}

}  // namespace blockscope
