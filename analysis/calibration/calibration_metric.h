// The metric that fills the similarities, drifts and errors of CalibrationSums in one pass over
// arrays or summaries. Internal to the calibration.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "analysis/calibration/calibration.h"
#include "analysis/calibration/joint_reads.h"
#include "analysis/math/cosine.h"
#include "analysis/math/lowest_values.h"
#include "analysis/math/running_mean.h"
#include "analysis/metrics/kept_steps.h"
#include "analysis/metrics/left_out.h"

namespace blockscope {

class CalibrationMetric : public StepMetric {
 public:
  /// most_pairs: [ranges], upper bounds of the step pairs.
  CalibrationMetric(const CalibrationSums& sums, const CalibrationOptions& options,
                    const std::vector<std::int64_t>& most_pairs);

  Needs begin_trace(const TraceReader& trace, const TraceShape& shape) override;
  void add_block(const BlockSteps& block) override;
  void add(const StepView& step) override;
  MetricResult finish() override { return {}; }
  /// Writes everything except the savings into `sums`.
  void write(CalibrationSums& sums) const;

 private:
  /// The statistics of a head in a range.
  struct Cell {
    RunningMean similarity, drift;
    LowestValues lowest;
  };
  /// The errors of a head in a range under a tau, as RangeSums.
  struct Errors {
    std::vector<ReuseErrorSums> reused;  // [range + 1]
    ReuseErrorSums recomputed;
  };
  /// A copy of a pair that StepView does not keep.
  struct KeptPair {
    bool known = false;
    std::int64_t sequence = -1;
    std::int32_t block = -1, step = 0;
    ViewType type = ViewType::f32;
    std::vector<std::byte> external;               // [H, B, D] of `type`
    std::vector<float> lse;                        // [H, B]
    std::vector<std::vector<std::uint8_t>> valid;  // [H][B]
  };
  struct Layer {
    std::vector<Cell> cells;             // [H * ranges]
    std::vector<Errors> errors;          // [taus * H * ranges]
    std::vector<ReuseErrorSums> rows;    // [taus * RowKind * H * ranges]
    std::vector<LeftOutSteps> left_out;  // [taus]
    std::int64_t non_finite = 0, zero = 0;
    KeptPair provisional;            // of each head's last provisional read
    std::vector<KeptPair> ends;      // [ranges - 1]: of the range's last step
    std::vector<CosineSum> cosines;  // scratch
  };
  /// What one head's pair and an earlier one have in common; NaN: no position has both.
  struct Change {
    double cosine = kNotMeasured, drift = kNotMeasured;
  };

  static std::vector<double> taus_of(const CalibrationSums& sums);
  static std::vector<ReuseRule> rules_of(const CalibrationSums& sums, ReuseCount count);
  void add_stored_similarity(const StepView& step, Layer& layer) const;
  /// Compares `heads` heads from `first` on with a pair of these heads, and adds the result to
  /// their cells. Returns the change of the last one.
  Change compare(const StepView& step, const ExternalPair& pair, std::size_t first,
                 std::size_t heads, Layer& layer) const;
  /// The same with what the trace has of the comparison with an earlier step.
  void compare_stored(const StepView& step, std::int32_t earlier, std::size_t first,
                      std::size_t heads, Layer& layer) const;
  void add_change(const StepView& step, Layer& layer) const;
  void add_stored(const StepView& step, Layer& layer) const;
  void add_provisional(const StepView& step, Layer& layer) const;
  void add_errors(const StepView& step, Layer& layer);
  void add_rows(const StepView& step, Layer& layer) const;
  void add_masked_errors(const StepView& step, const std::vector<ReuseErrorReader::Tau>& read,
                         Layer& layer);
  std::vector<ReuseErrorSums> errors_from(const StepView& step, const KeptPair& pair) const;
  void keep(const StepView& step, std::size_t head, KeptPair& pair) const;
  void keep_all(const StepView& step, KeptPair& pair) const;
  ExternalPair pair_of(const KeptPair& pair, std::size_t first, std::size_t heads) const;
  void write_left_out(CalibrationSums& sums) const;
  std::size_t at(std::size_t tau, std::size_t head, std::size_t range) const {
    return (tau * shape_.heads.size() + head) * ranges_.size() + range;
  }

  ReuseErrorReader reader_;
  CalibrationOptions options_;
  StepRanges ranges_;
  ReuseRule kept_rule_;
  std::vector<ReuseRule> rules_;  // [taus]
  KeptSteps kept_steps_;
  JointReads joint_reads_;         // of the current trace, with stored pairs
  std::int64_t block_tokens_ = 0;  // of the current trace
  std::vector<std::int64_t> most_pairs_;
  ExactFields fields_;
  TraceShape shape_;
  std::string computed_from_;
  LeftOut left_out_;
  std::vector<Layer> layers_;
  bool has_arrays_ = true;
};

}  // namespace blockscope
