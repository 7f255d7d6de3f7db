// Size of the union of the tokens' top-k sets over a block, divided by k (MAGE, Fig. 1a):
//   |U_i Top-k(i)| / k,  i over the block's positions,
// between 1 (all tokens want the same keys) and B. From /sets/topk_token (level full), else from
// /sets/union_size. A union is a whole number of keys, so exact counts are kept: histogram and
// quantiles of merged traces are those of all their rows together.
//
// Rows with N <= k have every key in every set, so they are left out and counted in left_out.
#pragma once

#include <string>

#include "analysis/math/position_sets.h"
#include "analysis/math/running_mean.h"
#include "analysis/metrics/layer_counts.h"
#include "analysis/metrics/metrics.h"

namespace blockscope {

/// Width of the histogram's bins, in units of |U| / k. Bin i is [1 + i w, 1 + (i + 1) w); the last
/// one holds B.
inline constexpr double kUnionBinWidth = 0.5;

/// Arrays: union_size [layer, kv_head, step], the mean of |U| / k; union_histogram [layer, steps,
/// bin], rows x KV heads per bin; union_quantiles [layer, steps, quantile] and union_quantiles_all
/// [steps, quantile]. steps: "all", and "step 1" as in the paper's figure. quantile: p5, p50, p95
/// and max. p5 is the smallest value that at least 5 % of the rows do not exceed.
class UnionSizeMetric : public StepMetric {
 public:
  explicit UnionSizeMetric(const MetricOptions& options) : options_(options) {}

  Needs begin_trace(const TraceReader& trace, const TraceShape& shape) override;
  void add(const StepView& step) override;
  MetricResult finish() override;

 private:
  using Counts = std::vector<std::int64_t>;  // rows x KV heads by size of the union, in keys
  struct Layer {
    UnionCounter counter;
    std::vector<std::int32_t> valid_sets;
    Counts all, first;
    std::int64_t from_tokens = 0, stored = 0;
  };
  std::int64_t union_size(const StepView& step, std::size_t kv_head);
  ResultArray histogram() const;
  ResultArray quantiles(bool per_layer) const;

  MetricOptions options_;
  TraceShape shape_;
  std::string path_;
  bool from_tokens_ = false;
  std::vector<Layer> layers_;
  StepGrid mean_;
  LayerCounts left_out_;
};

}  // namespace blockscope
