// This step's exact A_out, L_out, compared with the pair that a reusing step would take: the kept
// pair, from the last step of the block that reads the prefix under the rule (FlashBlock, arXiv
// 2602.05305, section 4.2; its released calibration compares with the kept pair too). Per row:
//   cosine        cos(A_out, A_out^src)
//   change        |L_out - L_out^src|
//   reuse error   e and ref of reuse_error.h
// The rows are told apart by what became of them since that read (RowKind). Steps that read are
// left out.
//
// From the arrays of level `outputs` for any tau, or from /summary/kept_pair, which has tau 2, 3, 4
// and inf. Left out and counted are rows without a prefix, steps with a source hidden by a gap, and
// heads with values that are not finite. Rows with an L_out that is -inf are left out.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "analysis/metrics/kept_steps.h"
#include "analysis/metrics/metrics.h"
#include "analysis/pass/exact_values.h"

namespace blockscope {

/// Sums over rows.
struct KeptTerms {
  double rows = 0.0;
  double cosine = 0.0;
  double change = 0.0;     ///< sum |L_out - L_out^src|
  double squared = 0.0;    ///< sum e^2, over rows and channels
  double reference = 0.0;  ///< sum ref^2

  void add(const KeptTerms& other);
  bool finite() const;
  double similarity() const;   ///< mean cosine; NaN without rows
  double lse_change() const;   ///< mean change
  double relative_l2() const;  ///< sqrt(sum e^2 / sum ref^2)
};

/// The sums of one step in one layer under every tau, from arrays or summaries.
class KeptReader {
 public:
  /// taus >= 1.
  KeptReader(const std::vector<double>& taus, ReuseCount count, bool from_summary);

  /// Needs of this trace. Throws TraceError, with the name `metric`, if the trace has neither
  /// arrays nor summaries, or no exact values.
  Needs begin_trace(const TraceReader& trace, const TraceShape& shape, const std::string& metric);
  /// For every block of the trace, before its steps.
  void add_block(const BlockSteps& block) { steps_.add_block(block); }
  std::vector<double> taus() const;
  std::string computed_from() const;  ///< datasets of the current trace

  enum class Found : std::uint8_t {
    reads,   ///< the rule reads at this step: nothing is kept
    reuses,  ///< `heads` has its sums
    hidden,  ///< a gap hides the kept pair
    unknown  ///< /summary/kept_pair has no such rule
  };
  using ByKind = std::array<KeptTerms, kRowKinds.size()>;
  struct Tau {
    Found found = Found::reads;
    std::int64_t age = 0;       ///< steps since the pair was computed
    std::vector<ByKind> heads;  ///< [recorded heads]; empty unless `reuses`
  };
  /// [taus]. Valid until the next call for this layer. The step must have a prefix.
  const std::vector<Tau>& read(const StepView& step);

 private:
  /// Buffers of one thread.
  struct Scratch {
    std::vector<float> external, internal, source;  // [H, B, D]
  };
  /// Data of one layer. Only one thread at a time uses it.
  struct Layer {
    std::vector<Tau> taus;
    std::vector<const StepRef*> sources;  // [taus]
  };
  void read_stored(const StepView& step, Layer& layer) const;
  void read_arrays(const StepView& step, Layer& layer) const;
  std::vector<ByKind> compare(const StepView& step, std::size_t tau, Scratch& scratch) const;

  std::vector<ReuseRule> rules_;
  KeptSteps steps_;
  bool from_summary_ = false;
  bool reads_summary_ = false;
  ExactFields fields_;
  std::size_t heads_ = 0;
  LayerSizes sizes_;
  std::vector<Layer> layers_;
};

/// Arrays `similarity_kept`, `lse_change`, `kept_error`, [tau, rows, layer, head, step] where
/// the rule reuses; rows: all, then kRowKinds. With the suffix _age: [tau, rows, layer, age];
/// _head: [tau, rows, layer, head]; _layer: [tau, rows, layer]; _rows: [tau, rows].
std::unique_ptr<StepMetric> make_kept_pair(const MetricOptions& options);

}  // namespace blockscope
