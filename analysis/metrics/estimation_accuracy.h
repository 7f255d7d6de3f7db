// Estimation accuracy of a block's set for each of its tokens (MAGE, eq. 1):
//   EstAcc = |S n S*_token| / k, mean over the block's tokens.
// "block oracle": S is the block's exact set of the same step, the best set that the block can
// share. "first-step oracle": S is the block's exact set of step 1, which MAGE uses. From
// /sets/topk and the per-token sets /sets/topk_token (level full). At step 1 the two are equal, so
// est_acc_later compares them over the rows with t > 1.
//
// Rows with N <= k are trivial, so they are left out and counted in left_out.
#pragma once

#include <array>
#include <string>

#include "analysis/math/position_sets.h"
#include "analysis/math/running_mean.h"
#include "analysis/metrics/layer_counts.h"
#include "analysis/metrics/metrics.h"

namespace blockscope {

/// Arrays: est_acc [estimator, layer, kv_head, step]; est_acc_later [estimator, layer]. Terms are
/// tokens.
class EstimationAccuracyMetric : public StepMetric {
 public:
  static constexpr std::array kEstimators{"block oracle", "first-step oracle"};

  Needs begin_trace(const TraceReader& trace, const TraceShape& shape) override;
  void add(const StepView& step) override;
  MetricResult finish() override;

 private:
  void add_head(const StepView& step, std::size_t kv_head);
  ResultArray by_step() const;
  ResultArray later() const;

  TraceShape shape_;
  std::string path_;
  std::vector<OverlapCounter> counters_;                            // [layer]
  std::array<StepGrid, kEstimators.size()> accuracy_;               // columns: KV heads
  std::array<std::vector<RunningMean>, kEstimators.size()> later_;  // [layer]
  LayerCounts left_out_;
};

}  // namespace blockscope
