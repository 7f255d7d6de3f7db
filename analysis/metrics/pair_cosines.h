// Adjacent-step cosines of one array, collected per (layer, column, step). Internal to analysis.
#pragma once

#include <string>
#include <vector>

#include "analysis/math/cosine.h"
#include "analysis/math/running_mean.h"
#include "analysis/metrics/left_out.h"
#include "analysis/pass/step_pass.h"

namespace blockscope {

/// Follows the rules of StepMetric: several layers at the same time, one layer from one thread.
class PairCosines {
 public:
  PairCosines() = default;
  PairCosines(std::size_t layers, std::size_t columns)
      : grid_(layers, columns), left_(layers), last_(layers) {}

  /// Adds the pair (previous, now) of a field [columns, B, dim]. All steps of a trace use the same
  /// field.
  void add(const StepView& step, Field field, std::size_t columns);
  /// Adds the pair's mean per column, from /summary.
  void add_means(const StepView& step, Field field);

  const StepGrid& grid() const { return grid_; }
  void count_left_out(LeftOut& counts) const;

 private:
  struct LeftOutOfLayer {
    std::int64_t non_finite = 0;
    std::int64_t zero = 0;
  };
  StepGrid grid_;
  std::vector<LeftOutOfLayer> left_;  // [layer]
  /// The last `now` and the squares of its rows, because it may be the next `previous`.
  struct Last {
    const StepRef* step = nullptr;
    KeptSquares squares;
  };
  std::vector<Last> last_;  // [layer]
};

}  // namespace blockscope
