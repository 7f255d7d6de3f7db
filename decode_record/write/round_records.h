// Rounds of a draft and its target, whoever ran them: as a trace's rows hold them
// (docs/trace_format.md, "Drafts"), as the JSON lines of docs/interchange.md do, and on the way
// from one to the other.
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

/// A token, rank or accepted number that nobody told.
inline constexpr std::int64_t kUnknown = -1;

/// What may be known of each drafted token beside itself: its name in a file of rounds, and where a
/// trace has it.
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

/// One pass of the target over a certain token and n drafted ones (n = 0: nothing was drafted).
struct RoundRecord {
  std::int64_t position = 0;      ///< of the certain token, from the prompt's first one
  std::int64_t token = kUnknown;  ///< the certain token
  std::vector<std::int64_t>
      drafted;  ///< [n], of position + 1 + i; kUnknown (of another engine) only behind the accepted
  std::int64_t accepted = 0;         ///< 0 to n
  std::vector<std::int64_t> target;  ///< [n], what the target decided on there, or kUnknown
  std::int64_t next = kUnknown;      ///< the target's token behind the accepted ones
  float next_confidence = std::numeric_limits<float>::quiet_NaN();  ///< NaN: unknown
  std::array<std::vector<std::int64_t>, kRoundRanks.size()> ranks;  ///< each [n], or empty
  std::array<std::vector<float>, kRoundValues.size()> values;       ///< each [n], or empty
  std::int64_t draft_ns = 0;   ///< of the draft's pass; 0: unknown
  std::int64_t target_ns = 0;  ///< of the target's

  std::int64_t after() const { return position + accepted + 1; }  ///< of the next certain token
};

struct DraftedSequence {
  SequenceStart start;
  std::int64_t first_token = kUnknown;  ///< of the answer, the prefill's
  float first_confidence = std::numeric_limits<float>::quiet_NaN();
  std::vector<RoundRecord> rounds;  ///< by position; each begins where the one before it ended
  SequenceEnd end;
};

struct ImportedRounds {
  std::string engine;               ///< "vLLM"
  std::int64_t vocab_size = 0;      ///< of the target
  std::int64_t mask_token_id = -1;  ///< of the draft; -1: unknown
  std::int64_t block_length = 0;    ///< the certain token and what is drafted at most
  std::vector<std::int64_t> stop_ids;
  std::vector<DraftedSequence> sequences;
  std::string kept = "{}";         ///< JSON: what a trace has no dataset for
  std::vector<std::string> notes;  ///< what of the file is not kept, one sentence each
};

/// Whether a trace with drafts has the target's predictions and attention, not the draft's.
bool is_of_target(const TraceMeta& meta);

/// The rounds of one sequence of a trace with drafts; the last one of a run that was cut may lack
/// the commit row's pass, and `next` behind the answer's end is not in a trace where all drafts
/// were accepted. `report` hears now and then how many of how many rows were read, and may throw.
/// Throws CorruptTrace for tokens outside the vocabulary and impossible counts.
DraftedSequence read_rounds(
    const TraceReader& trace, std::int64_t sequence,
    const std::function<void(std::int64_t done, std::int64_t all)>& report = {});

/// The metadata of its trace, of level `trajectory`; run_json and pieces are the caller's.
TraceMeta rounds_meta(const ImportedRounds& run);

/// Appends all sequences, with rows as a capture's. `between` is called before each of them.
void write_rounds(const ImportedRounds& run, TraceWriter& writer,
                  const std::function<void()>& between);

}  // namespace blockscope
