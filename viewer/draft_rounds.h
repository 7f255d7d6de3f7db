// What a draft proposed and its target made of it: what the Draft panel shows of one sequence, and
// counts of acceptance over the whole trace. Read on the background thread; no ImGui here.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "decode_record/trace_reader.h"
#include "viewer/data_service.h"

namespace blockscope {

/// One sequence of a drafted trace, round by round. Token ids are -1 where none was recorded.
struct DraftRounds : Payload {
  struct Round {
    std::int64_t row = -1;            ///< the draft's pass
    std::int32_t block = -1;          ///< number of the round
    std::int32_t first_position = 0;  ///< of the certain token, after the prompt
    std::int32_t accepted = -1;       ///< of B - 1 drafted tokens; -1: not recorded
    std::int32_t certain = -1;        ///< the token at first_position
    std::int32_t next = -1;           ///< the target's choice behind the accepted ones; -1: none in
                                      ///< the answer
    float next_probability = 0.0F;    ///< of `next` under the target; NaN: not recorded
    std::int64_t draft_ns = 0;        ///< time of the draft's pass
    std::int64_t target_ns = 0;       ///< time of the target's pass; 0: not recorded
  };
  /// A position of a block, from 1. The datasets of /draft and /prediction under their own names.
  struct Cell {
    std::int32_t drafted = -1, target = -1;  ///< tokens
    std::int32_t target_rank = -1;           ///< of the target's token under the draft, from 0
    std::int32_t draft_rank = -1;            ///< of the drafted token under the target, from 0
    float confidence = 0.0F;                 ///< of the drafted token under the draft
    float target_probability = 0.0F;         ///< of the target's token under the draft
    float draft_probability = 0.0F;          ///< of the drafted token under the target
    float draft_entropy = 0.0F, target_entropy = 0.0F;  ///< nats
  };
  /// A token of the answer, as /frames has it.
  struct Told {
    std::int32_t token = -1;      ///< -1: still a mask
    std::int32_t round = -1;      ///< index into rounds; -1: told by the prefill
    std::int32_t drafted_at = 0;  ///< block position of the accepted draft; 0: the target's own
  };
  std::int32_t block_length = 0;  ///< B
  std::int32_t gen_length = 0;    ///< positions of the answer
  bool has_pieces = false;        ///< false: there is no text, only token ids
  std::vector<Round> rounds;      ///< as they were decoded
  std::vector<Cell> cells;   ///< [rounds, B]; position 0 is the certain token's and has nothing
  std::vector<Told> answer;  ///< as far as it was told
  std::unordered_map<std::int32_t, std::string> texts;  ///< of all tokens here, readable

  std::size_t bytes() const override;
  const Cell& cell(std::size_t round, std::int32_t position) const;
  /// Readable; empty for -1.
  const std::string& text(std::int32_t token) const;
  /// The token that the target put behind the accepted ones, in the answer or not; -1: not
  /// recorded.
  std::int32_t target_of(std::size_t round) const;
  /// Of the round that the row drafted; rounds.size(): none.
  std::size_t round_of_row(std::int64_t row) const;
};
/// Throws CorruptTrace for numbers that can't be, JobControl::TooLarge for a sequence that needs
/// more memory than a job may take unasked.
std::shared_ptr<const DraftRounds> read_draft_rounds(const TraceReader& trace,
                                                     std::int64_t sequence, JobControl& control);

/// Acceptance over rounds.
struct DraftCounts {
  std::int64_t rounds = 0;             ///< whose acceptance was recorded
  std::int64_t unknown = 0;            ///< others
  std::int64_t decided = 0;            ///< accepted tokens of the answers: none behind their ends
  std::vector<std::int64_t> survived;  ///< [B]: rounds that accepted at least that many tokens
  /// With the target's own token of each round, as `blockscope info` counts.
  double tokens_per_round() const;
  /// Share of rounds whose draft was accepted at a block position; NaN without rounds.
  double survival(std::size_t position) const;
};
struct DraftTotals : Payload {
  DraftCounts trace;
  std::vector<DraftCounts> sequences;  ///< by sequence; aborted ones have no rounds
  std::size_t bytes() const override;
};
/// Reads four columns of the trace. Aborted sequences are left out.
std::shared_ptr<const DraftTotals> read_draft_totals(const TraceReader& trace, JobControl& control);

}  // namespace blockscope
