// Calibration of head-wise reuse (FlashBlock, arXiv 2602.05305, section 4.2). From traces, it
// chooses the heads that may reuse their external attention, and predicts the savings and errors.
//
//   CalibrationSums sums = accumulate_calibration(traces, {});      // one pass over the traces
//   ReusePredictor predictor(sums, ReuseGranularity::head);         // microseconds
//   ReusePoint point = predictor.at(gamma, tau);                    // for a slider
//   Calibration chosen = choose(sums, {.gamma = 0.9, .tau = 2});
//   write_reuse_file("reuse.json", to_reuse_file(sums, chosen));
//
// Savings count denoising steps with a prefix, because prefill and commit passes are exact under
// every policy. Which steps may reuse says ReuseRule. A KV head's N keys and values are not read
// iff all G of its query heads reuse. A query head that reuses saves 4 B N D FLOPs.
//
// ReusePoint has two errors: "where reused" (bounded by --max-error) and "over all heads".
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "analysis/calibration/calibration_sums.h"
#include "decode_record/interchange/reuse_file.h"

namespace blockscope {

/// Predicts the savings and errors of any (gamma, tau). Keeps a reference to the sums.
class ReusePredictor {
 public:
  /// Pins hold at every gamma and in every range. Throws UsageError for a pin of a head that
  /// doesn't exist, for a pin to reuse of a head that was not measured, and for a bound without
  /// drifts.
  ReusePredictor(const CalibrationSums& sums, ReuseGranularity granularity,
                 const std::vector<ReusePin>& pins = {},
                 const std::optional<double>& lse_bound = {});

  /// The heads that reuse with these gammas [ranges]; the sum over the ranges.
  std::int64_t heads(const std::vector<double>& gammas) const;
  /// One gamma for all ranges, or [ranges].
  ReusePoint at(double gamma, std::int64_t tau) const;
  ReusePoint at(const std::vector<double>& gammas, std::int64_t tau) const;
  ReusePrediction predict(const std::vector<double>& gammas, std::int64_t tau) const;
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
  const CalibrationSums& sums_;
  std::size_t num_heads_ = 0;  ///< layers * heads
  std::vector<double> keys_;  ///< [layers * heads * ranges]; a head reuses in a range iff its key >
                              ///< gamma; pinned: +-inf
  RangeMatrices<double> head_keys_;   ///< [ranges][layers], falling: the same
  RangeMatrices<double> group_keys_;  ///< [ranges][layers], falling; a KV head is not read iff its
                                      ///< key > gamma
  std::vector<double> levels_;        ///< distinct keys, rising
  double bytes_ = 0.0, flops_ = 0.0;  ///< of all steps, in units of an element; B N H D

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
  std::vector<ReusePin> pins{};       ///< by rising (layer, head)
  std::optional<double> lse_bound{};  ///< heads with a larger drift never reuse
  std::vector<double> gammas{};       ///< [ranges], in place of one gamma for all
};

/// Throws UsageError with the name of the flag.
void check_request(const CalibrationRequest& request);

/// How far the sample can be trusted.
struct SampleTrust {
  std::int64_t measured = 0;   ///< heads with a similarity; the sum over the ranges
  std::int64_t undecided = 0;  ///< of them, unpinned: gamma within 2 standard errors, or one pair
  double largest_error = 0.0;  ///< largest standard error; NaN: no head has two pairs
  std::int64_t fewest_pairs = 0;
};

struct Calibration {
  std::vector<double> gamma;  ///< [ranges]
  std::int64_t tau = 2;
  ReuseGranularity granularity = ReuseGranularity::head;
  std::vector<ReusePin> pins;
  std::optional<double> lse_bound;
  ReuseMasks reuse;
  ReusePrediction predicted;
  SampleTrust trust;
};

/// Throws UsageError for a senseless request, and for one out of reach, with the values in reach.
Calibration choose(const CalibrationSums& sums, const CalibrationRequest& request);

/// [ranges]: the squared relative errors of rows if the heads of the masks reuse at this tau. Empty
/// for summaries.
std::vector<RowErrors> row_errors_of(const CalibrationSums& sums, const ReuseMasks& masks,
                                     std::int64_t tau);

/// The gammas for a person: one, or those of the ranges.
std::string gamma_text(const Calibration& calibration);

/// What a user must know before using it: one sentence each, without a final full stop.
std::vector<std::string> warnings_of(const Calibration& calibration);

/// The content of the file, with a curve for every accumulated tau.
ReuseFile to_reuse_file(const CalibrationSums& sums, const Calibration& calibration);

}  // namespace blockscope
