// Reads the rounds of a draft and its target that another engine wrote as JSON lines: a header,
// then a line for each sequence and each round, in the form of docs/interchange.md ("Rounds").
#pragma once

#include <string>
#include <string_view>

#include "decode_record/interchange/imported_trajectory.h"
#include "decode_record/write/round_records.h"

namespace blockscope {

inline constexpr std::string_view kRoundsFormat = "blockscope-rounds";
inline constexpr std::int64_t kRoundsVersion = 1;

/// Whether a text has that form: its first line is a complete JSON object, and it names the format
/// or more lines follow.
bool is_rounds(std::string_view text);

/// Throws TrajectoryError (file:line, place, expected, got) for a file that has not that form or
/// contradicts itself, and UsageError for a fact that neither the file nor `facts` gives. Tokens,
/// accepted numbers, the target's decisions and an answer's length may be left out if other lines
/// determine them. Rounds after an answer's end are left out, with a note.
ImportedRounds parse_rounds(std::string_view text, const std::string& name,
                            const ImportFacts& facts);

}  // namespace blockscope
