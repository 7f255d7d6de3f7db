// The five stages from predictions to top-k sets, each compared with step 1 of the block (MAGE,
// appendix A, Table 2):
//   S1  KL(p^1 || p^t) of the predictions at positions that are masked in both steps;
//   S2  mean_i |h_i^1 - h_i^t|, h unit-normalised hidden states (input of the layer);
//   S3  mean_i |q_i^1 - q_i^t|, q unit-normalised queries of a head (after QK-norm and RoPE);
//   S4  |mean_i q_i^1 - mean_i q_i^t|, the average of those q over the block, not renormalised;
//   S5  recall |S*(1) n S*(t)| / k at the trace's k.
// A norm is taken per (layer, head, block, step) and then averaged. Each step of a block counts
// once; for S1, each masked position counts once. By Jensen's inequality S4 <= S3. Values that
// contradict it by more than rounding come from damaged data, so they are left out and counted.
//
// S2-S4 come from /hidden and /query if the trace has them, else from /summary, which also exists
// if the recorder left step 1 out. S1 is /prediction/kl_step1, S5 is from /sets/topk.
#pragma once

#include <array>
#include <string>

#include "analysis/math/running_mean.h"
#include "analysis/metrics/layer_counts.h"
#include "analysis/metrics/metrics.h"
#include "analysis/metrics/recall.h"

namespace blockscope {

inline constexpr std::size_t kNumStages = 5;
inline constexpr std::array<const char*, kNumStages> kStageLabels{
    "S1 KL of predictions", "S2 hidden gap", "S3 query gap", "S4 block query gap", "S5 recall"};

/// The rows that count: [trace of the group][row]. Empty: all.
using RowMask = std::vector<std::vector<bool>>;

/// Mean of |u_i - v_i| over positions i with valid[i] != 0, and |mean_i (u_i - v_i)|. u and v are
/// the rows of a and b [positions, channels], divided by their norms. A zero row stays zero.
struct UnitGaps {
  double per_position = 0.0;
  double block_average = 0.0;
};
UnitGaps unit_gaps(std::span<const float> a, std::span<const float> b, std::size_t channels,
                   std::span<const std::uint8_t> valid);

/// Arrays: stages [stage], the means over all steps; kl [step]; hidden_gap [layer, step];
/// query_gap, query_block_gap [layer, head, step]; recall [layer, kv_head, step]. All for t > 1.
class QueryStatisticsMetric : public StepMetric {
 public:
  explicit QueryStatisticsMetric(const MetricOptions& options, RowMask rows = {});

  Needs begin_trace(const TraceReader& trace, const TraceShape& shape) override;
  void add_block(const BlockSteps& block) override;
  void add(const StepView& step) override;
  MetricResult finish() override;

 private:
  struct Layer {
    std::vector<float> now, first;  // widened arrays
    SetRecall recall;
  };
  /// Sources of the current trace's values.
  struct Sources {
    bool hidden = false, query = false;  ///< from arrays; else from /summary
    bool sets = false;
  };
  bool counts(const StepRef& step) const;
  void add_kl(const StepView& step);
  void add_hidden(const StepView& step);
  void add_queries(const StepView& step);
  void add_query_gaps(const StepView& step, std::size_t head, double gap, double block_gap);
  void add_recall(const StepView& step);
  std::array<RunningMean, kNumStages> stage_means() const;
  std::size_t kl_layer() const;

  bool from_summary_;
  RowMask rows_;
  std::size_t trace_ = 0;  // traces begun so far
  Sources sources_;
  TraceShape shape_;
  std::string path_;
  std::string computed_from_;
  std::vector<Layer> layers_;
  // S1 has no layers: every layer adds it, and one layer with values is reported.
  StepGrid kl_, hidden_, query_, block_query_, recall_;
  LayerCounts left_out_;
  std::int64_t short_blocks_ = 0;
};

}  // namespace blockscope
