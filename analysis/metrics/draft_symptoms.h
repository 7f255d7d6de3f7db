// Symptoms of drafts that were trained, served or sampled wrongly: a number from /draft for each,
// and whether it is beyond its limit. For the metric `draft`, the report, and docs/drafts.md, which
// all follow the one table draft_symptoms().
//
// Words: a position is reached if every drafted token before it was accepted, and refused if it was
// reached and not accepted. The draft is sure where the drafted token has a probability of at least
// kSure under it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "analysis/metrics/draft_counts.h"
#include "analysis/metrics/draft_rounds.h"
#include "analysis/results/metric_result.h"

namespace blockscope {

inline constexpr double kSure = 0.9;          ///< probability
inline constexpr double kUnsureTarget = 1.0;  ///< nats

struct DraftSymptom {
  std::string_view name;    ///< label on the axis `symptom`
  std::string_view title;   ///< the cause that it suggests
  std::string_view number;  ///< what is measured
  double limit = 0.0;
  bool low =
      false;  ///< seen if the number is at most the limit; false: if it is at least the limit
  std::int64_t least = 0;     ///< evidence that a verdict needs
  std::string_view evidence;  ///< what is counted: "rounds"
  std::string_view unclear;   ///< why there is no verdict in spite of the evidence; may be empty
  std::string_view alike;     ///< what else looks the same
  std::string_view look_at;   ///< what to do
};

/// In the order of the arrays.
const std::vector<DraftSymptom>& draft_symptoms();
/// "at most 0.5", "at least 0.2".
std::string condition_of(const DraftSymptom& symptom);

struct SymptomVerdict {
  const DraftSymptom* symptom = nullptr;
  double number = 0.0;  ///< NaN: nothing to compute it from
  std::int64_t evidence = 0;
  double seen = 0.0;  ///< 1, 0, or NaN: cannot tell
  /// "seen", "not seen", or "cannot tell: needs 100 rounds, found 3".
  std::string text() const;
};

/// The verdicts of a result of the metric `draft`.
std::vector<SymptomVerdict> symptom_verdicts(const MetricResult& result);

class DraftSymptoms {
 public:
  /// Rounds of a sequence come in their order.
  void add(const TraceReader& trace, const StepRef& step, const DraftRound& round);
  /// The next rounds are those of another trace.
  void finish_trace() { answers_.clear(); }
  /// symptoms and symptom_seen [symptom]. `by_depth`: accepted and reached positions by
  /// depth_bins().
  std::vector<ResultArray> arrays(const BinnedShares& by_depth) const;

 private:
  struct Answer {
    std::int64_t start = 0;            // position of tokens[0]
    std::vector<std::int32_t> tokens;  // -1: a mask
    std::int32_t at(std::int64_t position) const;
  };
  static Answer read_answer(const TraceReader& trace, std::int64_t sequence);
  void compare(const Answer& answer, std::int64_t block_start, const DraftRound& round);

  std::unordered_map<std::int64_t, Answer> answers_;  // of the current trace, by sequence
  AcceptedShare first_rounds_;                        // position 1 in a sequence's first round
  AcceptedShare first_sure_;                          // accepted: refused although sure
  AcceptedShare sure_refused_;                        // of sure positions
  AcceptedShare unsure_target_;                       // of refused positions
  std::int64_t compared_ = 0, own_ = 0, before_ = 0, after_ = 0;  // tokens equal to the answer's
};

}  // namespace blockscope
