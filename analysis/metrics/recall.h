// Recall of the first step's top-k set (MAGE, Fig. 2): how much of what step 1 selected a later
// step still selects,
//   r(t) = |S*(1) n S*(t)| / k,  t > 1,
// from /sets/topk: sets by falling score, so the first k' entries are the set of every k' <= k.
//
// Beside it the probability that step 1's set covers at step t. The trace has the step's own k
// largest probabilities only, so it is known between bounds:
//   covered          sum of p_t over S*(1)[:k'] n S*(t)[:k]: a lower bound, and the whole of it but
//                    for positions that fell out of the step's top k;
//   covered_at_most  the same, plus the k-th largest probability for each position that fell out;
//   covered_by_own   sum of p_t over S*(t)[:k']: what the best set of this size covers.
// p_t is /sets/probability: the mean over the G * B queries of a KV head, normalised over the keys
// that the trace's set_normaliser names.
//
// Rows with N <= k' keep every key, whatever the model does: counted in left_out, never averaged.
// From summaries (MetricOptions::from_summary): /sets/recall and, as covered_by_own,
// /sets/covered, at k only.
#pragma once

#include <array>
#include <string>

#include "analysis/math/position_sets.h"
#include "analysis/math/running_mean.h"
#include "analysis/metrics/layer_counts.h"
#include "analysis/metrics/metrics.h"

namespace blockscope {

/// Set sizes to report, ascending: the wanted ones, or powers of 2 up to `set_size` and itself.
/// Throws UsageError for sizes below 1 or above `set_size`.
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
  /// Step 1's set of one KV head, kept while steps of the same block and layer follow.
  struct FirstSet {
    RankTable table;
    std::size_t length = 0;
    std::array<std::int64_t, 3> of{};  // trace, row, layer; traces count from 1
  };
  /// Of one thread.
  struct Scratch {
    std::vector<FirstSet> first;  // by KV head
    SetChecker checker;
    std::vector<std::int32_t> ranks;  // [k] of this step's members in step 1's set
  };
  FirstSet& first_set(const StepView& step, std::size_t kv_head, Scratch& scratch) const;
  void begin_shape(const TraceShape& shape);
  /// Throws CorruptTrace for a set of step 1, which later steps only look up, that is none.
  void check_sets(const StepView& step) const;
  void add_stored(const StepView& step);
  void add_head(const StepView& step, std::size_t kv_head);
  void add_covered(const StepView& step, std::size_t kv_head, std::span<const float> probability,
                   std::size_t length, std::span<const std::int32_t> ranks);
  ResultArray means(const StepGrid& grid, const std::string& name, const std::string& description);

  MetricOptions options_;
  TraceShape shape_;
  std::string path_;        // of the current trace, for errors
  std::int64_t trace_ = 0;  // the current trace's number, of all that this process looked at
  std::string normaliser_;  // of all traces
  std::vector<std::int64_t> sizes_;
  StepGrid recall_, covered_, at_most_, own_;  // columns: kv_head * sizes + size
  LayerCounts left_out_;
  std::int64_t short_blocks_ = 0;
};

/// |first n now| / k for the whole stored set of every KV head; the fifth stage of the query
/// statistics. Not thread-safe.
class SetRecall {
 public:
  /// NaN where either set has fewer than k members. Throws Error as RankTable::assign does.
  double of(std::span<const std::int32_t> first, std::span<const std::int32_t> now);

 private:
  SetChecker checker_;
  RankTable table_;
  std::vector<std::int32_t> ranks_;
};

}  // namespace blockscope
