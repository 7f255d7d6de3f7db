// Predicted speed-up of other block lengths, from the rounds of one run and its /draft/cost.
// Internal to the metric `draft`.
#pragma once

#include <cstdint>
#include <vector>

#include "analysis/results/metric_result.h"
#include "decode_record/schema/trace_meta.h"

namespace blockscope {

/// Times of one trace for every block length, linear between the measured lengths.
struct RoundTimes {
  std::vector<double> draft_ns, target_ns;  ///< [B]: entry b - 1 is for blocks of b positions
};
/// `costs`: valid for check_meta(), not empty.
RoundTimes round_times(const std::vector<DraftCost>& costs);

/// Sums over traces. Each round counts with the times of its own trace.
class DraftSpeedup {
 public:
  /// Announces rounds with times, so that arrays() has the block lengths.
  void expect(std::int64_t block_length);
  /// rounds_of_length[l - 1]: number of rounds of a trace that added l tokens, [B].
  void add(const std::vector<std::int64_t>& rounds_of_length, const std::vector<DraftCost>& costs);
  bool empty() const { return tokens_.empty(); }
  /// tokens_per_round, draft_time, target_time, speedup [block_length]; terms: rounds.
  std::vector<ResultArray> arrays() const;

 private:
  std::int64_t rounds_ = 0;
  std::vector<double> tokens_, draft_ns_, target_ns_, alone_ns_;  // [B], summed over rounds
};

}  // namespace blockscope
