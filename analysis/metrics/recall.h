// Recall of the first step's top-k set (MAGE, Fig. 2): the share of step 1's set that a later step
// still selects,
//   r(t) = |S*(1) n S*(t)| / k,  t > 1,
// from /sets/topk. Sets are by falling score, so the first k' entries are the set for k' <= k.
//
// Also the probability that step 1's set covers at step t. The trace has only the step's own k
// largest probabilities, so there are bounds:
//   covered          sum of p_t over S*(1)[:k'] n S*(t)[:k]: a lower bound, which lacks only the
//                    positions that left the step's top k;
//   covered_at_most  the same, plus the k-th largest probability for each position that left;
//   covered_by_own   sum of p_t over S*(t)[:k']: the probability that the best set of this size
//                    covers.
// p_t is /sets/probability: the mean over the G * B queries of a KV head, normalised over the keys
// that the trace's set_normaliser names.
//
// Rows with N <= k' always keep every key, so they are left out and counted in left_out. From
// summaries (MetricOptions::from_summary): /sets/recall, and /sets/covered as covered_by_own, only
// at k.
#pragma once

#include <array>
#include <string>

#include "analysis/math/position_sets.h"
#include "analysis/math/running_mean.h"
#include "analysis/metrics/layer_counts.h"
#include "analysis/metrics/metrics.h"

namespace blockscope {

/// Set sizes to report, ascending: the wanted ones, or the powers of 2 below `set_size` and
/// `set_size` itself. Throws UsageError for sizes below 1 or above `set_size`.
std::vector<std::int64_t> resolve_set_sizes(const std::vector<std::int64_t>& wanted,
                                            std::int64_t set_size);

/// Arrays [layer, kv_head, step, k]: recall, covered, covered_at_most, covered_by_own.
class RecallMetric : public StepMetric {
 public:
  explicit RecallMetric(const MetricOptions& options) : options_(options) {}

  Needs begin_trace(const TraceReader& trace, const TraceShape& shape) override;
  void add_block(const BlockSteps& block) override;
  void add(const StepView& step) override;
  MetricResult finish() override;

 private:
  /// Step 1's set of one KV head, kept for the next steps of the same block and layer.
  struct FirstSet {
    RankTable table;
    std::size_t length = 0;
    std::array<std::int64_t, 3> of{};  // trace, row, layer; traces count from 1
  };
  /// Buffers of one thread.
  struct Scratch {
    std::vector<FirstSet> first;  // by KV head
    SetChecker checker;
    std::vector<std::int32_t> ranks;  // [k] ranks in step 1's set of this step's members
  };
  FirstSet& first_set(const StepView& step, std::size_t kv_head, Scratch& scratch) const;
  void begin_shape(const TraceShape& shape);
  /// Throws CorruptTrace if step 1's entries are not a set; later steps only look them up.
  void check_sets(const StepView& step) const;
  void add_stored(const StepView& step);
  void add_head(const StepView& step, std::size_t kv_head);
  void add_covered(const StepView& step, std::size_t kv_head, std::span<const float> probability,
                   std::size_t length, std::span<const std::int32_t> ranks);
  ResultArray means(const StepGrid& grid, const std::string& name, const std::string& description);

  MetricOptions options_;
  TraceShape shape_;
  std::string path_;        // path of the current trace, for errors
  std::int64_t trace_ = 0;  // number of the current trace among all that this process read
  std::string normaliser_;  // of all traces
  std::vector<std::int64_t> sizes_;
  StepGrid recall_, covered_, at_most_, own_;  // columns: kv_head * sizes + size
  LayerCounts left_out_;
  std::int64_t short_blocks_ = 0;
};

/// |first n now| / k over the whole stored sets: the fifth stage of the query statistics. Not
/// thread-safe.
class SetRecall {
 public:
  /// NaN if a set has fewer than k members. Throws Error like RankTable::assign.
  double of(std::span<const std::int32_t> first, std::span<const std::int32_t> now);

 private:
  SetChecker checker_;
  RankTable table_;
  std::vector<std::int32_t> ranks_;
};

}  // namespace blockscope
