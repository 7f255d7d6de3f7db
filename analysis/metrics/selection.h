// How well a sparse policy's sets match the exact attention that --shadow computed, step by step. A
// KV head read the set S (/attention/selected). k' is the smaller of |S| and the trace's set_size.
// For each KV head:
//   block_accuracy  |S n S*(t)[:k']| / k', with S*(t) the block's exact set at this step
//                   (/sets/topk): MAGE, eq. 1, with the block's set in place of a token's;
//   token_accuracy  the mean over tokens of |S n S*_token(t)[:k']| / k': eq. 1 itself (level full).
// For each query head:
//   covered         mean over queries of exp(L_S - L_out): the share of the prefix's probability on
//                   S; L_S is /attention/lse_external, L_out is /shadow/lse_external;
//   output_error    relative L2 of the attention output over the block (/shadow/output_error). A
//                   residual changes this error, but not `covered`.
// Two kinds of rows are left out and counted in left_out: steps that read the whole prefix
// (selected is all -1 and L_S is finite), and rows with N <= |S|, where every key is in the set. A
// step that read none of its keys counts: it covers nothing, and has an error.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "analysis/math/position_sets.h"
#include "analysis/math/running_mean.h"
#include "analysis/metrics/layer_counts.h"
#include "analysis/metrics/metrics.h"

namespace blockscope {

/// Sum of exp(L_S - L_out) over the valid queries, each at most 1, and their number.
struct CoveredShare {
  double sum = 0.0;
  std::int64_t terms = 0;
};
/// Covered share of one head. used: L_S (/attention/lse_external); exact: L_out; all are [B].
CoveredShare covered_share(std::span<const float> used, std::span<const float> exact,
                           std::span<const std::uint8_t> valid);

/// Arrays: block_accuracy, token_accuracy [layer, kv_head, step], if the trace has the sets;
/// covered, output_error [layer, head, step]. Terms are rows (token_accuracy: tokens; covered:
/// queries).
class SelectionMetric : public StepMetric {
 public:
  Needs begin_trace(const TraceReader& trace, const TraceShape& shape) override;
  void add(const StepView& step) override;
  MetricResult finish() override;

 private:
  bool reads_nothing(const StepView& step) const;
  void add_sets(const StepView& step);
  void add_heads(const StepView& step);

  TraceShape shape_;
  std::string path_;
  std::size_t selected_size_ = 0;                 // k of the current trace
  bool has_sets_ = true, has_token_sets_ = true;  // true if all traces have them
  std::vector<OverlapCounter> counters_;          // [layer]
  StepGrid block_accuracy_, token_accuracy_;      // columns: KV heads
  StepGrid covered_, error_;                      // columns: heads
  LayerCounts left_out_;
};

}  // namespace blockscope
