// Compares the rounds of two drafted runs: which sequences belong together, and where and how their
// rounds differ. It compares only values that both traces have, so the runs may come from different
// engines.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "analysis/metrics/trace_comparison.h"
#include "decode_record/write/round_records.h"

namespace blockscope {

/// The rounds of one sequence in both runs, aligned by their start positions in the answer.
struct RoundPairs {
  std::int64_t rounds_a = 0, rounds_b = 0;
  std::int64_t lined_up = 0;  ///< rounds with the same start position in both runs
  std::int64_t equal = 0;     ///< of these, equal in all values that both runs have
  /// Numbers of the first different round; -1 if a run has no round at its position.
  std::int64_t first_a = -1, first_b = -1;
  std::int64_t position = -1;  ///< of its certain token, after the prompt; -1: all rounds are equal
  std::vector<std::string> reasons;  ///< its differences: "accepted: 3 in A, 1 in B"
  bool same() const { return position < 0; }
};

RoundPairs pair_rounds(const DraftedSequence& a, const DraftedSequence& b);

struct SequenceRounds {
  SequenceMatch sequences;
  std::string name;  ///< the name in A
  RoundPairs rounds;
};

/// Mean of accepted + 1 over the rounds with at least one drafted token.
struct AcceptanceMean {
  std::int64_t rounds = 0;
  std::int64_t tokens = 0;
  void add(const DraftedSequence& sequence);
  double value() const;  ///< NaN without rounds
};

struct RoundsComparison {
  std::vector<SequenceRounds> pairs;         ///< in A's order; no rounds if the prompts differ
  std::vector<std::int64_t> only_a, only_b;  ///< sequences without a partner
  AcceptanceMean accepted_a, accepted_b;     ///< of paired sequences with the same prompt
  std::int64_t rounds_a = 0, rounds_b = 0;   ///< of these sequences, like the next two
  std::int64_t lined_up = 0, equal = 0;
  bool same() const;
};

/// Why the rounds can't be compared: no drafts, or different vocabularies. Empty if they can.
std::string rounds_obstacle(const TraceMeta& a, const TraceMeta& b);

/// Throws UsageError for an obstacle, and CorruptTrace like read_rounds().
RoundsComparison compare_rounds(const TraceReader& a, const TraceReader& b);

}  // namespace blockscope
