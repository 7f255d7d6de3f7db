// What blocks of other lengths would be worth, from the rounds of one run and its /draft/cost.
// Internal to the metric `draft`.
#pragma once

#include <cstdint>
#include <vector>

#include "analysis/results/metric_result.h"
#include "decode_record/schema/trace_meta.h"

namespace blockscope {

/// Times of one trace for every block length, linear between those that were measured.
struct RoundTimes {
  std::vector<double> draft_ns, target_ns;  ///< [B]: entry b - 1 of blocks of b positions
};
/// `costs`: as check_meta() wants them, not empty.
RoundTimes round_times(const std::vector<DraftCost>& costs);

/// Sums over traces: of several, each round counts with the times of its own trace.
class DraftSpeedup {
 public:
  /// There will be rounds with times, so arrays() has something to be about.
  void expect(std::int64_t block_length);
  /// rounds_of_length[l - 1]: rounds of a trace that added l tokens, [B] as expected.
  void add(const std::vector<std::int64_t>& rounds_of_length, const std::vector<DraftCost>& costs);
  bool empty() const { return tokens_.empty(); }
  /// tokens_per_round, draft_time, target_time, speedup [block_length]; terms: rounds.
  std::vector<ResultArray> arrays() const;

 private:
  std::int64_t rounds_ = 0;
  std::vector<double> tokens_, draft_ns_, target_ns_, alone_ns_;  // [B], summed over rounds
};

}  // namespace blockscope
