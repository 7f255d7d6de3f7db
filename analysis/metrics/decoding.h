// How a run decoded: tokens per step, steps per block, confidence of decided tokens, the step of
// each position's final token, edits, M per step, and how often a step may reuse (FlashBlock, arXiv
// 2602.05305, section 4.2, can reuse at these steps). Needs only /steps, /frames and /sequences,
// which every trace has.
#pragma once

#include <array>
#include <string>

#include "analysis/math/running_mean.h"
#include "analysis/metrics/metrics.h"

namespace blockscope {

/// Sums over blocks. decoding_curves.h uses them, too.
class DecodingTotals {
 public:
  explicit DecodingTotals(std::vector<double> taus = {}, ReuseCount count = ReuseCount::since_read);

  /// Adds one block of the trace with all its steps. Reads its deltas.
  void add(const TraceReader& trace, const BlockSteps& block, bool autoregressive);

  RunningMean tokens_per_step() const { return tokens_; }
  RunningMean steps_per_block() const { return steps_; }
  RunningMean confidence() const { return confidence_; }
  RunningMean changed() const { return changed_; }
  /// Mean over sequences that ended and have a score.
  RunningMean accuracy() const { return accuracy_; }

  /// Mean [step].
  ResultArray tokens_by_step() const;
  ResultArray confidence_by_step() const;
  ResultArray changed_by_step() const;
  ResultArray masks_by_step() const;
  /// Mean [kind, step] of changes other than decided tokens; no kind where there were none.
  ResultArray edits_by_step() const;
  /// Share [tau] of the denoising steps after a block's first that may reuse by the rule.
  ResultArray share_below_tau() const;
  /// Counts [steps]: blocks that took this many steps.
  ResultArray blocks_by_steps() const;
  /// Counts [step, position]: blocks in which this position got its final token at this step.
  ResultArray settled(std::int64_t block_length) const;
  std::map<std::string, std::int64_t> left_out() const { return left_out_; }

 private:
  using Means = std::vector<RunningMean>;  // [step - 1]
  static RunningMean& at_step(Means& means, std::int64_t step);
  static ResultArray by_step(const Means& means, std::string name, std::string unit,
                             std::string description);
  /// A block while its steps are added.
  struct Course {
    std::int64_t origin = 0;               // of the block in the answer
    std::vector<std::int64_t> tokens;      // [B]
    std::vector<std::int64_t> settled_at;  // [B] step of the token; kUnsettled: a mask
  };
  void add_step(const TraceReader& trace, const StepRef& step, Course& course);
  void add_token(std::int64_t step, float confidence);
  bool ended(const TraceReader& trace, const BlockSteps& block, FinishReason reason) const;

  std::vector<double> taus_;
  std::vector<ReuseCounter> counters_;  // [taus]
  RunningMean tokens_, steps_, confidence_, changed_, accuracy_;
  Means tokens_by_step_, confidence_by_step_, changed_by_step_, masks_by_step_;
  std::array<Means, 4> edits_by_step_;  // tokens edited, taken back, positions inserted, deleted
  std::vector<std::int64_t> below_tau_;
  std::int64_t later_steps_ = 0;
  std::vector<std::int64_t> blocks_by_steps_;       // [steps - 1]
  std::vector<std::vector<std::int64_t>> settled_;  // [step - 1][position]
  std::map<std::string, std::int64_t> left_out_;
  std::map<std::int64_t, std::int64_t> prompt_length_;  // by sequence of the current trace
  std::map<std::int64_t, FinishReason> finish_reason_;
  const TraceReader* trace_ = nullptr;  // the trace of the maps' sequences
};

/// True if the trace says that it was decoded token by token, not in blocks.
bool is_autoregressive(const TraceReader& trace);

/// Arrays: means [quantity]; tokens_by_step, confidence_by_step, changed_by_step, masks_by_step
/// [step]; blocks_by_steps [steps]; settled [step, position]; share_below_tau [tau]; if any step
/// edits, takes back, inserts or deletes: edits_by_step [kind, step].
class DecodingMetric : public StepMetric {
 public:
  explicit DecodingMetric(const MetricOptions& options) : totals_(options.taus, options.count) {}

  Needs begin_trace(const TraceReader& trace, const TraceShape& shape) override;
  void add_block(const BlockSteps& block) override;
  void add(const StepView& /*step*/) override {}
  MetricResult finish() override;

 private:
  DecodingTotals totals_;
  const TraceReader* trace_ = nullptr;
  bool autoregressive_ = false;
  std::int64_t block_length_ = 0;
};

}  // namespace blockscope
