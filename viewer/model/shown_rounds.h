// What a draft proposed and its target made of it: what the Draft panel shows of one sequence, and
// counts of acceptance over the whole trace. Read on the background thread; no ImGui here.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "analysis/pass/block_index.h"
#include "decode_record/read/trace_reader.h"
#include "viewer/model/view_model.h"

namespace blockscope {

/// The rounds of one sequence of a drafted trace, as read_rounds()
/// (decode_record/write/round_records.h) gives them, laid out for drawing. -1 and NaN: not
/// recorded.
struct ShownRounds : Payload {
  struct Round {
    std::int64_t row = -1;                     ///< the draft's pass; -1: nothing was drafted
    std::int32_t first_position = 0;           ///< of the certain token, after the prompt
    std::int32_t drafted = 0;                  ///< tokens, at block positions 1 to this one
    std::int32_t accepted = 0;                 ///< of these
    std::int32_t certain = -1;                 ///< the token at first_position
    std::int32_t next = -1;                    ///< the target's token behind the accepted ones
    float next_probability = 0.0F;             ///< under the target
    std::int64_t draft_ns = 0, target_ns = 0;  ///< of the passes; 0: not recorded
  };
  /// A drafted position. The datasets of /draft and /prediction under their own names.
  struct Cell {
    std::int32_t drafted = -1, target = -1;             ///< tokens
    std::int32_t target_rank_under_draft = -1;          ///< of the target's token under the draft
    std::int32_t drafted_rank_under_target = -1;        ///< of the drafted token under the target
    float confidence = 0.0F;                            ///< of the drafted token under the draft
    float target_probability_under_draft = 0.0F;        ///< of the target's token under the draft
    float drafted_probability_under_target = 0.0F;      ///< of the drafted token under the target
    float draft_entropy = 0.0F, target_entropy = 0.0F;  ///< nats
  };
  /// A token of the answer.
  struct Told {
    std::int32_t token = -1;      ///< -1: still a mask
    std::int32_t round = -1;      ///< index into rounds; -1: told by the prefill
    std::int32_t drafted_at = 0;  ///< block position of the accepted draft; 0: the target's own
  };
  std::int32_t block_length = 0;  ///< B
  std::int32_t gen_length = 0;    ///< positions of the answer
  bool has_pieces = false;        ///< false: there is no text, only token ids
  std::vector<Round> rounds;      ///< as they were decoded
  std::vector<Cell> cells;        ///< [rounds, B]; only positions 1 to `drafted` hold something
  std::vector<Told> answer;       ///< as far as it was told
  std::unordered_map<std::int32_t, std::string> texts;  ///< of all tokens here, readable

  std::size_t bytes() const override;
  const Cell& cell(std::size_t round, std::int32_t position) const;
  /// Readable; empty for -1.
  const std::string& text(std::int32_t token) const;
  /// Of the round that the row drafted; rounds.size(): none.
  std::size_t round_of_row(std::int64_t row) const;
};
/// `blocks`: of the trace, as list_blocks() gives them. Throws CorruptTrace for numbers that can't
/// be, JobControl::TooLarge for a sequence that needs more memory than a job may take unasked.
std::shared_ptr<const ShownRounds> read_shown_rounds(const TraceReader& trace,
                                                     std::int64_t sequence,
                                                     const std::vector<BlockSteps>& blocks,
                                                     JobControl& control);
/// Of the selected sequence of a drafted trace (has_draft).
Data<ShownRounds> request_shown_rounds(ViewModel& model);

/// Acceptance over the rounds in which something was drafted. What lies behind an answer's end is
/// left out, as in the metric `draft`.
struct DraftCounts {
  std::int64_t rounds = 0;
  std::int64_t tokens = 0;             ///< that they added, the target's own with them
  std::vector<std::int64_t> survived;  ///< [B]: rounds that added more drafted tokens than p - 1
  double tokens_per_round() const;     ///< as `blockscope info` says them; NaN without rounds
  /// Share of the rounds whose draft was accepted at a block position; NaN without rounds.
  double survival(std::size_t position) const;
};
struct DraftTotals : Payload {
  DraftCounts trace;
  std::vector<DraftCounts> sequences;  ///< by sequence
  std::size_t bytes() const override;
};
std::shared_ptr<const DraftTotals> read_draft_totals(const TraceReader& trace,
                                                     const std::vector<BlockSteps>& blocks,
                                                     JobControl& control);
/// Of the active trace, a drafted one.
Data<DraftTotals> request_draft_totals(ViewModel& model);

}  // namespace blockscope
