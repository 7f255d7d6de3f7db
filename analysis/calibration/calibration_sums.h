// What a calibration measures in one pass over traces.
//
// Statistic per (range of steps, layer, head): sim_{A_out} of a step pair = mean over block
// positions of cos(A_out_i^s, A_out_i^r), A_out exact. r is the step before (Fig. 5 of the paper),
// or the step of the kept pair (ReuseReference). `similarity` is its mean over step pairs, blocks
// and sequences weighted by positions; standard deviation, 5th percentile and count are over the
// pairs. `lse_drift` is the same mean of |L_out^s - L_out^r|. The kept pair is one of these:
// - that of the rule, which steps that may reuse would take (kept_tau and count);
// - with `provisional`: from the block's first step on, each head replaces its pair at the steps
//   whose own cosine and drift say so. This is the calibration of FlashBlock's released video code
//   (Caesarhhh/Flash_Block, video/wan/modules/causal_model.py:969-1009).
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "analysis/metrics/reuse_error.h"
#include "analysis/pass/step_pass.h"
#include "decode_record/interchange/reuse_file.h"

namespace blockscope {

/// Sums over the steps of one range, for one tau.
struct RangeSums {
  /// [layers]: sum of the layer's external keys N over the steps that may reuse, and of B N.
  std::vector<double> reusing_keys, reusing_flops;
  /// [layers * heads] of the model, over these steps; all zero for a head that was not recorded.
  /// reused[0]: if the head read last where the rule says so. reused[1 + r]: if it also read, by
  /// its mask, up to the last step of the earlier range r.
  std::vector<std::vector<ReuseErrorSums>> reused;
  std::vector<ReuseErrorSums> recomputed;  ///< over the steps that the rule recomputes
  /// [RowKind][layers * heads]: reused[0] by kind of row. Summaries have none.
  std::array<std::vector<ReuseErrorSums>, kRowKinds.size()> rows;
};

/// Sums over the traces for one tau.
struct TauSums {
  std::int64_t tau = 0;
  std::int64_t reusing_steps = 0;  ///< those of CalibrationSums::steps that may reuse
  std::vector<RangeSums> ranges;
  bool errors_known = true;  ///< false: /summary has no such tau
};

struct CalibrationSums {
  ReuseModel model;
  LayerSizes sizes;        ///< of the model
  std::int64_t steps = 0;  ///< denoising steps with a prefix, recorded or not
  /// [layers]: sum of N over them, and of B N; N = the layer's external keys, B = positions that
  /// exist.
  std::vector<double> keys, flops;
  ReuseCount tau_counts = ReuseCount::since_read;  ///< what these tau count
  std::vector<TauSums> taus;

  StepRanges ranges;  ///< of all that follows
  ReuseReference reference = ReuseReference::adjacent;
  RangeMatrices<double> similarity, standard_deviation, standard_error, p5;  ///< NaN: not recorded
  RangeMatrices<double> lse_drift;    ///< NaN: not recorded; empty: not in the summaries
  RangeMatrices<std::int64_t> count;  ///< step pairs

  std::vector<ReuseTrace> traces;
  /// What `similarity` is a mean of, or else holds.
  std::string statistic = "mean cosine of exact A_out between adjacent denoising steps";
  bool ranked = false;        ///< `similarity` holds ranks, without standard errors
  std::string computed_from;  ///< datasets
  std::map<std::string, std::int64_t> left_out;  ///< terms by reason, as in MetricResult

  /// Throws UsageError if this tau was not accumulated.
  const TauSums& at(std::int64_t tau) const;
};

/// A head replaces its pair at a step iff not (cosine > gamma and drift <= lse_bound).
struct ProvisionalMask {
  double gamma = 0.0;
  std::optional<double> lse_bound;
};

/// Ranges are for blocks of at most so many steps, and each step is a range of at most so many.
inline constexpr std::size_t kMostStepRanges = 32;

struct CalibrationOptions {
  std::vector<std::int64_t> taus{1, 2, 3, 4};  ///< each >= 1
  ReuseCount count = ReuseCount::since_read;   ///< what these tau count
  StepRanges ranges;
  bool each_step =
      false;  ///< instead: 1-2, 3, 4, ... up to the longest block (step 1 never reuses)
  ReuseReference reference = ReuseReference::adjacent;
  std::int64_t kept_tau = 2;                   ///< of the rule whose kept pair is the reference
  std::optional<ProvisionalMask> provisional;  ///< kept: by these masks instead of the rule
  bool needs_drift = false;                    ///< refuse summaries, which have no lse_drift
  bool from_summary = false;                   ///< read /summary even if the trace has the arrays
  PassOptions pass;
};

/// The ranges of "2-4,5-8" or "1-4,5": without gap or overlap, from step 1 or 2. The last one has
/// no end, whatever its last number says. Throws UsageError with `where`.
StepRanges parse_step_ranges(const std::string& where, const std::string& text);

/// Throws what run_pass throws. Throws TraceError if no head has a step pair, and for summaries if
/// ranges, a kept reference or the drift are asked for. Throws UsageError for more than
/// kMostStepRanges.
CalibrationSums accumulate_calibration(const TraceGroup& traces, const CalibrationOptions& options);

}  // namespace blockscope
