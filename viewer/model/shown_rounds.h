// Data of the Draft panel: one sequence's drafted tokens and the target's decisions, and counts of
// acceptance over the whole trace. Read on the background thread; no ImGui here.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "analysis/pass/block_index.h"
#include "decode_record/read/trace_reader.h"
#include "viewer/model/view_model.h"

namespace blockscope {

/// The rounds of one sequence of a drafted trace, from read_rounds()
/// (decode_record/write/round_records.h), arranged for drawing. -1 and NaN: not recorded.
struct ShownRounds : Payload {
  struct Round {
    std::int64_t row = -1;            ///< the draft's pass; -1: nothing was drafted
    std::int32_t first_position = 0;  ///< where the certain token is, after the prompt
    std::int32_t drafted = 0;         ///< drafted tokens, at block positions 1 to `drafted`
    std::int32_t accepted = 0;        ///< accepted ones of these
    std::int32_t certain = -1;        ///< the token at first_position
    std::int32_t next = -1;           ///< the target's token after the accepted ones
    float next_probability = 0.0F;    ///< under the target
    std::int64_t draft_ns = 0, target_ns = 0;  ///< durations of the passes; 0: not recorded
  };
  /// A drafted position. Its members are named after the datasets of /draft and /prediction.
  struct Cell {
    std::int32_t drafted = -1, target = -1;             ///< tokens
    std::int32_t target_rank_under_draft = -1;          ///< of the target's token under the draft
    std::int32_t drafted_rank_under_target = -1;        ///< of the drafted token under the target
    float confidence = 0.0F;                            ///< of the drafted token under the draft
    float target_probability_under_draft = 0.0F;        ///< of the target's token under the draft
    float drafted_probability_under_target = 0.0F;      ///< of the drafted token under the target
    float draft_entropy = 0.0F, target_entropy = 0.0F;  ///< nats
  };
  /// What the draft's selector could take at a drafted position.
  struct Candidate {
    std::int32_t token = -1;
    float probability = 0.0F;  ///< under the draft, before the selector
    float score = 0.0F;        ///< the selector's
  };
  /// A token of the answer.
  struct Told {
    std::int32_t token = -1;      ///< -1: still a mask
    std::int32_t round = -1;      ///< index into rounds; -1: decided by the prefill
    std::int32_t drafted_at = 0;  ///< block position of the drafted token; 0: the target's own
  };
  std::int32_t block_length = 0;      ///< B
  std::int32_t gen_length = 0;        ///< positions of the answer
  bool has_pieces = false;            ///< false: there is no text, only token ids
  std::vector<Round> rounds;          ///< in the order of decoding
  std::vector<Cell> cells;            ///< [rounds, B]; only positions 1 to `drafted` hold something
  std::int32_t num_candidates = 0;    ///< C; 0: the draft has no selector
  std::vector<Candidate> candidates;  ///< [rounds, B, C], by falling probability
  std::vector<Told> answer;           ///< up to the last decided token
  std::vector<std::int32_t> runs;     ///< [answer], end_of_text_runs()
  std::unordered_map<std::int32_t, std::string> texts;  ///< readable texts of all tokens used here

  std::size_t bytes() const override;
  const Cell& cell(std::size_t round, std::int32_t position) const;
  /// The candidates of a drafted position. Empty without a selector, or if they are not recorded.
  std::span<const Candidate> candidates_at(std::size_t round, std::int32_t position) const;
  /// The readable text; empty for -1.
  const std::string& text(std::int32_t token) const;
  /// Index of the round whose draft pass is this row; rounds.size() if there is none.
  std::size_t round_of_row(std::int64_t row) const;
};
/// `blocks`: all blocks of the trace, from list_blocks(). Throws CorruptTrace for impossible
/// numbers, and JobControl::TooLarge if a job may not take so much memory without asking the user.
std::shared_ptr<const ShownRounds> read_shown_rounds(const TraceReader& trace,
                                                     std::int64_t sequence,
                                                     const std::vector<BlockSteps>& blocks,
                                                     JobControl& control);
/// Rounds of the selected sequence of a drafted trace (has_draft).
Data<ShownRounds> request_shown_rounds(ViewModel& model);

/// Acceptance over the rounds that drafted at least one token. Tokens after the end of an answer
/// are left out, as in the metric `draft`.
struct DraftCounts {
  std::int64_t rounds = 0;
  std::int64_t tokens = 0;             ///< added by the rounds, including the target's own
  std::vector<std::int64_t> survived;  ///< [B]: at p, rounds that added at least p drafted tokens
  double tokens_per_round() const;     ///< same value as in `blockscope info`; NaN without rounds
  /// Share of the rounds whose drafted token at a block position was accepted; NaN without rounds.
  double survival(std::size_t position) const;
};
struct DraftTotals : Payload {
  DraftCounts trace;
  std::vector<DraftCounts> sequences;  ///< one per sequence
  std::size_t bytes() const override;
};
std::shared_ptr<const DraftTotals> read_draft_totals(const TraceReader& trace,
                                                     const std::vector<BlockSteps>& blocks,
                                                     JobControl& control);
/// Counts of the active trace, which must have drafts.
Data<DraftTotals> request_draft_totals(ViewModel& model);

}  // namespace blockscope
