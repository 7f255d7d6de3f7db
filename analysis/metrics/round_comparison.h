// Rounds of two drafted runs lined up: which sequences belong together, where a round of one is
// another than the other's, and in what. Only what both traces know is compared, so the runs may be
// of two engines.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "analysis/metrics/trace_comparison.h"
#include "decode_record/write/round_records.h"

namespace blockscope {

/// The rounds of one sequence in both runs, lined up by where in the answer they begin.
struct RoundPairs {
  std::int64_t rounds_a = 0, rounds_b = 0;
  std::int64_t lined_up = 0;  ///< begin at a position where the other run has a round too
  std::int64_t equal = 0;     ///< of these, the same in everything that both know
  /// The first round that is not: its numbers, -1 where a run has none there.
  std::int64_t first_a = -1, first_b = -1;
  std::int64_t position = -1;        ///< of its certain token, after the prompt; -1: all are equal
  std::vector<std::string> reasons;  ///< what is different in it: "accepted: 3 in A, 1 in B"
  bool same() const { return position < 0; }
};

RoundPairs pair_rounds(const DraftedSequence& a, const DraftedSequence& b);

struct SequenceRounds {
  SequenceMatch sequences;
  std::string name;  ///< that of A
  RoundPairs rounds;
};

/// Mean of accepted + 1 over the rounds in which something was drafted.
struct AcceptanceMean {
  std::int64_t rounds = 0;
  std::int64_t tokens = 0;
  void add(const DraftedSequence& sequence);
  double value() const;  ///< NaN without rounds
};

struct RoundsComparison {
  std::vector<SequenceRounds> pairs;         ///< in A's order; without rounds where prompts differ
  std::vector<std::int64_t> only_a, only_b;  ///< sequences without a partner
  AcceptanceMean accepted_a, accepted_b;     ///< of the paired sequences with one prompt
  std::int64_t rounds_a = 0, rounds_b = 0;   ///< of these, as the next two
  std::int64_t lined_up = 0, equal = 0;
  bool same() const;
};

/// Why the rounds can't be compared: no drafts, or two vocabularies. Empty: they can.
std::string rounds_obstacle(const TraceMeta& a, const TraceMeta& b);

/// Throws UsageError where there is an obstacle, CorruptTrace as read_rounds() does.
RoundsComparison compare_rounds(const TraceReader& a, const TraceReader& b);

}  // namespace blockscope
