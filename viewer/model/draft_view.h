// Classes and colours of drafted tokens, and their numbers as tables, for the Draft panel's drawing
// of ShownRounds. No ImGui here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "viewer/model/csv_table.h"
#include "viewer/model/shown_rounds.h"

namespace blockscope {

/// What became of a drafted token.
enum class DraftOutcome : std::uint8_t {
  accepted,
  rejected,  ///< the first one that differs from the target's choice
  behind     ///< after the first rejected one: the target saw other tokens before it
};
DraftOutcome outcome_of(const ShownRounds::Round& round, std::int32_t position);
const char* name_of(DraftOutcome verdict);

/// What the drafted tokens are coloured by.
enum class DraftColour : std::uint8_t {
  outcome,
  target_rank_under_draft,
  drafted_rank_under_target,
  draft_entropy,
  target_entropy,
  drafted_probability_under_target,
  target_probability_under_draft,
  confidence
};
struct DraftColourInfo {
  std::string_view name;  ///< as --show takes it
  const char* label;      ///< for people
  enum class Scale : std::uint8_t { outcome, rank, entropy, probability } scale;
};
inline constexpr std::size_t kDraftColours = 8;
const DraftColourInfo& info_of(DraftColour colour);

/// Whether it is about the target's token under the draft, whose vocabulary may lack that token.
bool of_targets_token(DraftColour colour);
/// The recorded value; ranks as numbers; NaN if there is none.
float value_of(const ShownRounds::Cell& cell, DraftColour colour);
/// True if the draft's vocabulary lacks the target's token.
bool lacks_token(const ShownRounds::Cell& cell);

/// How many values the sequence has. `largest`: the largest number, 0 without any.
struct DraftValues {
  std::size_t recorded = 0, missing = 0, lacking = 0;  ///< lacking: see lacks_token
  float largest = 0.0F;
};
DraftValues count_values(const ShownRounds& rounds, DraftColour colour);

/// Ranks in classes: 0, 1, 2-4, 5-19, 20-99, 100 and more.
inline constexpr std::size_t kRankClasses = 6;
std::size_t rank_class(float rank);
const char* name_of_rank_class(std::size_t index);

/// Hover texts of a drafted position and of a token of the answer.
std::string describe(const ShownRounds& rounds, std::size_t round, std::int32_t position);
std::string describe_told(const ShownRounds& rounds, std::size_t position);

/// One row per drafted position: round, block position, position, verdict, tokens and all numbers.
CsvTable draft_rounds_table(const ShownRounds& rounds);
/// position, token, text, round, drafted at (empty: the target's own).
CsvTable draft_answer_table(const ShownRounds& rounds);

}  // namespace blockscope
