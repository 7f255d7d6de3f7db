// Calibration of head-wise reuse (FlashBlock, arXiv 2602.05305, section 4.2). From traces, it
// chooses the heads that may reuse their external attention, and predicts the savings and errors.
//
//   CalibrationSums sums = accumulate_calibration(traces, {});      // one pass over the traces
//   ReusePredictor predictor(sums, ReuseGranularity::head);         // microseconds
//   ReusePoint point = predictor.at(gamma, tau);                    // O(log heads): for a slider
//   Calibration chosen = choose(sums, {.gamma = 0.9, .tau = 2});
//   write_reuse_file("reuse.json", to_reuse_file(sums, chosen));
//
// Statistic per (layer, head): sim_{A_out} of a step pair = mean over block positions of
// cos(A_out_i^s, A_out_i^{s+1}), A_out exact (Fig. 5). `similarity` is its mean over step pairs,
// blocks and sequences weighted by positions; standard deviation, 5th percentile and count are over
// the pairs.
//
// Savings count denoising steps with a prefix, because prefill and commit passes are exact under
// every policy. Reuse needs a step > 1 with M < tau. A KV head's N keys and values are not read iff
// all G of its query heads reuse. A query head that reuses saves 4 B N D FLOPs.
//
// ReusePoint has two errors: "where reused" (bounded by --max-error) and "over all heads".
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "analysis/metrics/reuse_error.h"
#include "analysis/pass/step_pass.h"
#include "decode_record/interchange/reuse_file.h"

namespace blockscope {

/// Sums over the traces for one tau.
struct TauSums {
  std::int64_t tau = 0;
  std::int64_t reusing_steps = 0;  ///< those of CalibrationSums::steps with step > 1 and M < tau
  double reusing_keys = 0.0;       ///< sum of N over them
  double reusing_flops = 0.0;      ///< sum of B N over them
  /// [layers * heads] of the model; all zero for a head that was not recorded.
  std::vector<ReuseErrorSums> reused, recomputed;
  bool errors_known = true;  ///< false: /summary has no such tau
};

struct CalibrationSums {
  ReuseModel model;
  std::int64_t head_dim = 0;
  std::int64_t steps = 0;  ///< denoising steps with a prefix, recorded or not
  double keys = 0.0;       ///< sum of N over them
  double flops = 0.0;      ///< sum of B N over them, B = positions that exist
  ReuseCount tau_counts = ReuseCount::since_read;  ///< what these tau count
  std::vector<TauSums> taus;

  HeadMatrix<double> similarity, standard_deviation, standard_error, p5;  ///< NaN: not recorded
  HeadMatrix<std::int64_t> count;                                         ///< step pairs

  std::vector<ReuseTrace> traces;
  /// What `similarity` is a mean of, or else holds.
  std::string statistic = "mean cosine of exact A_out between adjacent denoising steps";
  bool ranked = false;        ///< `similarity` holds ranks, without standard errors
  std::string computed_from;  ///< datasets
  std::map<std::string, std::int64_t> left_out;  ///< terms by reason, as in MetricResult

  /// Throws UsageError if this tau was not accumulated.
  const TauSums& at(std::int64_t tau) const;
};

struct CalibrationOptions {
  std::vector<std::int64_t> taus{1, 2, 3, 4};  ///< each >= 1
  ReuseCount count = ReuseCount::since_read;   ///< what these tau count
  bool from_summary = false;                   ///< read /summary even if the trace has the arrays
  PassOptions pass;
};

/// Throws what run_pass throws, and TraceError if no head has a step pair.
CalibrationSums accumulate_calibration(const TraceGroup& traces, const CalibrationOptions& options);

/// Predicts the savings and errors of any (gamma, tau). Keeps a reference to the sums.
class ReusePredictor {
 public:
  /// Pins hold at every gamma. Throws UsageError for a pin of a head that doesn't exist, and for a
  /// pin to reuse of a head that was not measured.
  ReusePredictor(const CalibrationSums& sums, ReuseGranularity granularity,
                 const std::vector<ReusePin>& pins = {});

  ReusePoint at(double gamma, std::int64_t tau) const;
  ReusePrediction predict(double gamma, std::int64_t tau) const;
  /// For every possible set of reusing heads, the gamma with the fewest decimals. Ascending, and
  /// thinned evenly to `most`. The first gamma lets every head reuse, the last none, except pins.
  std::vector<double> gammas(std::size_t most = 200) const;
  ReuseCurve curve(std::int64_t tau, std::size_t most = 200) const;
  /// The largest gamma with byte_saving >= saving; nullopt if no gamma reaches it.
  std::optional<double> gamma_for_saving(double saving, std::int64_t tau) const;
  /// The smallest gamma with relative_l2_reused <= error; nullopt if no gamma reaches it. The error
  /// is not monotonic in gamma, so a larger gamma may exceed it again.
  std::optional<double> gamma_for_error(double error, std::int64_t tau) const;

 private:
  struct Prefix {
    /// Sums over the steps that may reuse, for the first i heads by falling key: [heads + 1].
    std::vector<double> squared{0.0}, absolute{0.0}, reference{0.0};
    std::vector<std::int64_t> terms{0};
    double reference_all = 0.0;  ///< sum over all heads and steps
  };
  const CalibrationSums& sums_;
  std::vector<double> keys_;        ///< a head reuses iff its key > gamma; falling; pinned: +-inf
  std::vector<double> group_keys_;  ///< a KV head is not read iff its key > gamma; falling
  std::vector<double> levels_;      ///< distinct keys, rising
  std::map<std::int64_t, Prefix> prefixes_;

  double gamma_of_interval(std::size_t interval) const;
  std::size_t num_intervals() const { return levels_.size() + 1; }
};

/// Set exactly one of gamma, saving and max_error.
struct CalibrationRequest {
  std::optional<double> gamma;      ///< in [-1, 1]
  std::optional<double> saving;     ///< of prefix bytes, in (0, 1]
  std::optional<double> max_error;  ///< relative L2 where reused, >= 0
  std::int64_t tau = 2;
  ReuseGranularity granularity = ReuseGranularity::head;
  std::vector<ReusePin> pins{};  ///< by rising (layer, head)
};

/// Throws UsageError with the name of the flag.
void check_request(const CalibrationRequest& request);

/// How far the sample can be trusted.
struct SampleTrust {
  std::int64_t measured = 0;   ///< heads with a similarity
  std::int64_t undecided = 0;  ///< of them, unpinned: gamma within 2 standard errors, or one pair
  double largest_error = 0.0;  ///< largest standard error; NaN: no head has two pairs
  std::int64_t fewest_pairs = 0;
};

struct Calibration {
  double gamma = 0.0;
  std::int64_t tau = 2;
  ReuseGranularity granularity = ReuseGranularity::head;
  std::vector<ReusePin> pins;
  HeadMatrix<bool> reuse;
  ReusePrediction predicted;
  SampleTrust trust;
};

/// Throws UsageError for a senseless request, and for one out of reach, with the values in reach.
Calibration choose(const CalibrationSums& sums, const CalibrationRequest& request);

/// What a user must know before using it: one sentence each, without a final full stop.
std::vector<std::string> warnings_of(const Calibration& calibration);

/// The content of the file, with a curve for every accumulated tau.
ReuseFile to_reuse_file(const CalibrationSums& sums, const Calibration& calibration);

}  // namespace blockscope
