// Rounds of a draft and its target, from any engine. They convert between the rows of a trace
// (docs/trace_format.md, "Drafts") and the JSON lines of docs/interchange.md.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "decode_record/read/trace_reader.h"
#include "decode_record/write/trace_writer.h"

namespace blockscope {

/// A token, rank or accepted number that is not known.
inline constexpr std::int64_t kUnknown = -1;

/// A value that may be known for each drafted token: its name in a file of rounds, and its dataset
/// in a trace.
struct RoundColumn {
  const char* name;
  Field field;
};
inline constexpr std::array<RoundColumn, 2> kRoundRanks = {
    {{"target_rank_under_draft", Field::target_rank_under_draft},
     {"drafted_rank_under_target", Field::drafted_rank_under_target}}};
inline constexpr std::array<RoundColumn, 5> kRoundValues = {
    {{"confidence", Field::draft_confidence},
     {"target_probability_under_draft", Field::target_probability_under_draft},
     {"drafted_probability_under_target", Field::drafted_probability_under_target},
     {"draft_entropy", Field::draft_entropy},
     {"target_entropy", Field::draft_target_entropy}}};

inline constexpr std::size_t kDraftConfidence = 0;  ///< in kRoundValues

/// What the selector of a DFlash 2 draft chose from: C candidates for each of n drafted tokens, by
/// falling probability. Empty: not known.
struct RoundCandidates {
  std::vector<std::int64_t> tokens;  ///< [n, C]; kUnknown where a position's are not known
  std::vector<float> probabilities;  ///< [n, C], under the draft; NaN: unknown
  std::vector<float> scores;         ///< [n, C], the selector's; NaN: unknown

  /// Which of the candidates of drafted token `at` this token is, from 0; kUnknown: none.
  std::int64_t find(std::size_t at, std::int64_t token, std::int64_t count) const;
};

/// One pass of the target over a certain token and n drafted ones (n = 0: nothing was drafted).
struct RoundRecord {
  std::int64_t position = 0;      ///< of the certain token, from the prompt's first one
  std::int64_t token = kUnknown;  ///< the certain token
  std::vector<std::int64_t>
      drafted;  ///< [n], at position + 1 + i; kUnknown (other engines) only after the accepted ones
  std::int64_t accepted = 0;         ///< 0 to n
  std::vector<std::int64_t> target;  ///< [n], the target's choice at that position, or kUnknown
  std::int64_t next = kUnknown;      ///< the target's token after the accepted ones
  float next_confidence = std::numeric_limits<float>::quiet_NaN();  ///< NaN: unknown
  std::array<std::vector<std::int64_t>, kRoundRanks.size()> ranks;  ///< each [n], or empty
  std::array<std::vector<float>, kRoundValues.size()> values;       ///< each [n], or empty
  RoundCandidates candidates;
  std::int64_t draft_ns = 0;   ///< of the draft's pass; 0: unknown
  std::int64_t target_ns = 0;  ///< of the target's

  std::int64_t after() const { return position + accepted + 1; }  ///< next certain token's position
};

struct DraftedSequence {
  SequenceStart start;
  std::int64_t first_token = kUnknown;  ///< of the answer; decided by the prefill
  float first_confidence = std::numeric_limits<float>::quiet_NaN();
  std::vector<RoundRecord> rounds;  ///< by position; each begins where the previous one ended
  SequenceEnd end;
};

struct ImportedRounds {
  std::string engine;                 ///< "vLLM"
  std::int64_t vocab_size = 0;        ///< of the target
  std::int64_t mask_token_id = -1;    ///< of the draft; -1: unknown
  std::int64_t block_length = 0;      ///< the certain token and the most drafted tokens
  std::int64_t draft_candidates = 0;  ///< C; 0: the draft has no selector
  std::vector<std::int64_t> stop_ids;
  std::vector<DraftedSequence> sequences;
  std::string kept = "{}";         ///< JSON: values for which a trace has no dataset
  std::vector<std::string> notes;  ///< parts of the file that are not kept, one sentence each
};

/// Whether a trace with drafts has the target's predictions and attention, not the draft's.
bool is_of_target(const TraceMeta& meta);

/// The rounds of one sequence of a trace with drafts. In a cut run, the last round may lack the
/// commit row's pass. If all drafts were accepted, a trace does not have `next` after the answer's
/// end. `report` is called now and then with the rows read so far and in all; it may throw. Throws
/// CorruptTrace for tokens outside the vocabulary and impossible counts.
DraftedSequence read_rounds(
    const TraceReader& trace, std::int64_t sequence,
    const std::function<void(std::int64_t done, std::int64_t all)>& report = {});

/// The metadata of the run's trace, of level `trajectory`. The caller sets run_json and pieces.
TraceMeta rounds_meta(const ImportedRounds& run);

/// Appends all sequences, with the same rows as a capture. `between` is called before each
/// sequence.
void write_rounds(const ImportedRounds& run, TraceWriter& writer,
                  const std::function<void()>& between);

}  // namespace blockscope
