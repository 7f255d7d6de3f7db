// One-step reuse error (FlashBlock, arXiv 2602.05305, section 4.2, eq. 9), from a trace alone: the
// error of the attention output if step s took its external pair from an earlier step,
//   e = merge(A_out^src, L_out^src, A_in^s, L_in^s) - merge(A_out^s, L_out^s, A_in^s, L_in^s),
// src = the last step of the block that reads the prefix under the rule (ReuseRule). The error is
// one-step and not propagated: step s has the inputs of the recorded run. gamma only masks heads,
// so the sums per head of one tau serve every gamma.
//
// From the arrays of level `outputs` or from /summary/step_pair for any tau >= 1, or from
// /summary/reuse_error, which has tau 2, 3, 4 and inf. A step that the rule recomputes adds no
// error, only its output to the reference. Left out and counted are rows without a prefix, steps
// with a source hidden by a gap, and heads with values that are not finite.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "analysis/metrics/metrics.h"
#include "analysis/pass/exact_values.h"

namespace blockscope {

/// Weight of the external side in the merge, exactly 0 if that side is empty (L_out = -inf). No
/// attention has an LSE of +inf, so +inf gives NaN.
double external_weight(float lse_external, float lse_internal);

/// A rule for each tau. Throws UsageError for tau < 1.
std::vector<ReuseRule> reuse_rules(const std::vector<double>& taus, ReuseCount count);
/// Index of the rule among kReuseTaus, or -1. count: that of the summaries.
std::ptrdiff_t summary_tau(const ReuseRule& rule, ReuseCount count);

/// Sums over positions and channels of one head. ref is the exact output.
struct ReuseErrorSums {
  double squared = 0.0;     ///< sum e^2
  double absolute = 0.0;    ///< sum |e|
  double reference = 0.0;   ///< sum ref^2
  double dot = 0.0;         ///< sum ref * merged
  std::int64_t terms = 0;   ///< positions
  std::int64_t values = 0;  ///< positions times channels, which ragged layers have in other numbers

  void add(const ReuseErrorSums& other);
  bool finite() const;
  double relative_l2() const;  ///< sqrt(sum e^2 / sum ref^2); NaN without terms
  double mean_l1() const;      ///< per channel
  double cosine() const;       ///< cosine of merged and ref as long vectors
};

/// An external pair of one layer: A_out [H, B, D], L_out [H, B], and the positions that it has [B].
struct ExternalPair {
  ArrayView external;
  std::span<const float> lse;
  std::span<const std::uint8_t> valid;
};

/// What /summary/step_pair holds of one head: this step's pair and that of an earlier step.
struct StoredPair {
  double cosine = 0.0;  ///< mean over the rows; NaN without rows
  double drift = 0.0;   ///< mean of |L_out - the earlier one|
  ReuseErrorSums errors;
  bool known = false;  ///< false: no such step, or no external key
};

/// The sums of one step in one layer under every tau, from arrays or summaries.
class ReuseErrorReader {
 public:
  /// taus >= 1.
  ReuseErrorReader(const std::vector<double>& taus, ReuseCount count, bool from_summary);

  /// Needs of this trace. Throws TraceError, with the name `metric`, if the trace has neither
  /// arrays nor summaries, or no exact values.
  Needs begin_trace(const TraceReader& trace, const TraceShape& shape, const std::string& metric);
  std::vector<double> taus() const;
  bool reads_summary() const { return reads_summary_; }  ///< for the current trace
  bool reads_pairs() const { return pair_steps_ > 0; }   ///< /summary/step_pair, likewise
  std::string computed_from() const;                     ///< datasets of the current trace

  enum class Rule : std::uint8_t {
    recomputed,  ///< recomputed by the rule: no error
    reused,
    hidden,  ///< reused, but a gap hides the source: no sums
    unknown  ///< reused, but /summary has no such rule: no sums
  };
  struct Tau {
    Rule rule = Rule::recomputed;
    std::vector<ReuseErrorSums> heads;  ///< [recorded heads]; empty: no sums
  };
  /// [taus]. Valid until the next call for this layer. The step must have a prefix.
  const std::vector<Tau>& read(const StepView& step);
  /// [recorded heads], from arrays: the sums of the step that read() just had, in the same thread,
  /// if its pair were this one. With `kinds` [B]: [RowKind, recorded heads].
  std::vector<ReuseErrorSums> errors_of(const StepView& step, const ExternalPair& pair,
                                        std::span<const std::uint8_t> kinds = {}) const;
  /// With reads_pairs(): the comparison of a head with an earlier step of the block. Throws
  /// TraceError if the trace has none with that step.
  StoredPair stored_pair(const StepView& step, std::int32_t earlier, std::size_t head) const;

 private:
  /// Data of one layer. Only one thread at a time uses it.
  struct Layer {
    std::vector<Tau> taus;
    std::vector<const StepRef*> sources;  // [taus]
  };
  /// Buffers of one thread.
  struct Scratch {
    std::vector<float> external, internal, source;  // [H, B, D]
    std::vector<double> weight;                     // [H, B] weight of the external side
  };
  static Scratch& scratch_of_thread();
  void read_arrays(const StepView& step, Layer& layer) const;
  void read_stored(const StepView& step, Layer& layer) const;
  void read_pairs(const StepView& step, Layer& layer) const;
  std::vector<ReuseErrorSums> reference_sums(const StepView& step, const Scratch& scratch) const;

  std::vector<ReuseRule> rules_;
  bool from_summary_ = false;
  ReuseCount summary_count_ = ReuseCount::since_read;  // of the current trace
  bool reads_summary_ = false;
  std::int64_t pair_steps_ = 0;  // of the current trace, if its pairs are read
  std::string path_;
  ExactFields fields_;
  std::size_t heads_ = 0;
  LayerSizes sizes_;
  std::vector<Layer> layers_;
};

/// Arrays over the steps that the rule lets reuse: relative_l2, mean_l1, cosine [tau, layer, head,
/// step]; relative_l2_head, mean_l1_head, cosine_head [tau, layer, head]; relative_l2_tau [tau],
/// over all heads. relative_l2_all_steps [tau] also includes recomputed steps.
std::unique_ptr<StepMetric> make_reuse_error(const MetricOptions& options);

}  // namespace blockscope
