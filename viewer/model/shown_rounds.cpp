#include "viewer/model/shown_rounds.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "analysis/metrics/draft_rounds.h"
#include "decode_record/base/nan.h"
#include "decode_record/read/end_of_text.h"
#include "decode_record/write/round_records.h"

namespace blockscope {
namespace {

/// Upper bound of the memory for reading a round, in addition to its values.
constexpr std::size_t kBytesOfRound = 512;

std::int32_t token_of(std::int64_t token) { return static_cast<std::int32_t>(token); }

/// The sequence's draft rows, by the start positions of their blocks.
std::unordered_map<std::int64_t, std::int64_t> rows_by_position(
    const std::vector<BlockSteps>& blocks, std::int64_t sequence) {
  std::unordered_map<std::int64_t, std::int64_t> rows;
  for (const BlockSteps& block : blocks) {
    if (block.sequence != sequence) continue;
    for (const StepRef& step : block.steps) rows.emplace(step.block_start, step.row);
  }
  return rows;
}

class RoundsBuilder {
 public:
  RoundsBuilder(const TraceReader& trace, const DraftedSequence& sequence) : sequence_(sequence) {
    shown_.block_length = static_cast<std::int32_t>(trace.info().meta.block_length);
    shown_.num_candidates = static_cast<std::int32_t>(trace.info().meta.draft_candidates);
    shown_.gen_length = static_cast<std::int32_t>(sequence.start.gen_length);
    shown_.has_pieces = trace.num_pieces() > 0;
  }

  ShownRounds build(const std::unordered_map<std::int64_t, std::int64_t>& rows) {
    tell(0, {token_of(sequence_.first_token), -1, 0});
    for (const RoundRecord& round : sequence_.rounds) {
      add_round(round, rows);
      add_cells(round);
      add_candidates(round);
      add_answer(round);
    }
    while (!shown_.answer.empty() && shown_.answer.back().token < 0) shown_.answer.pop_back();
    return std::move(shown_);
  }

 private:
  std::int32_t after_prompt(std::int64_t position) const {
    return static_cast<std::int32_t>(position - std::ssize(sequence_.start.prompt));
  }

  void add_round(const RoundRecord& from,
                 const std::unordered_map<std::int64_t, std::int64_t>& rows) {
    ShownRounds::Round round;
    if (const auto row = rows.find(from.position); row != rows.end()) {
      round.row = row->second;
    }
    round.first_position = after_prompt(from.position);
    round.drafted = static_cast<std::int32_t>(from.drafted.size());
    round.accepted = static_cast<std::int32_t>(from.accepted);
    round.certain = token_of(from.token);
    round.next = token_of(from.next);
    round.next_probability = from.next_confidence;
    round.draft_ns = from.draft_ns;
    round.target_ns = from.target_ns;
    shown_.rounds.push_back(round);
  }

  void add_cells(const RoundRecord& from) {
    const std::size_t first = shown_.cells.size();
    shown_.cells.resize(first + static_cast<std::size_t>(shown_.block_length));
    for (std::size_t i = 0; i < from.drafted.size(); ++i) {
      ShownRounds::Cell& cell = shown_.cells.at(first + 1 + i);
      cell.drafted = token_of(from.drafted[i]);
      cell.target = token_of(from.target.at(i));
      for (std::size_t k = 0; k < kRoundRanks.size(); ++k) {
        const std::int64_t rank = from.ranks[k].empty() ? kUnknown : from.ranks[k].at(i);
        rank_at(cell, kRoundRanks[k].field) = static_cast<std::int32_t>(rank);
      }
      for (std::size_t k = 0; k < kRoundValues.size(); ++k) {
        value_at(cell, kRoundValues[k].field) =
            from.values[k].empty() ? kNaN : from.values[k].at(i);
      }
    }
  }

  void add_candidates(const RoundRecord& from) {
    const auto width = static_cast<std::size_t>(shown_.num_candidates);
    const std::size_t first = shown_.candidates.size() + width;  // block position 1
    shown_.candidates.resize(shown_.candidates.size() +
                             width * static_cast<std::size_t>(shown_.block_length));
    const RoundCandidates& known = from.candidates;
    for (std::size_t i = 0; i < known.tokens.size(); ++i) {
      shown_.candidates.at(first + i) = {
          token_of(known.tokens[i]), known.probabilities.empty() ? kNaN : known.probabilities.at(i),
          known.scores.empty() ? kNaN : known.scores.at(i)};
    }
  }

  static std::int32_t& rank_at(ShownRounds::Cell& cell, Field field) {
    return field == Field::target_rank_under_draft ? cell.target_rank_under_draft
                                                   : cell.drafted_rank_under_target;
  }

  static float& value_at(ShownRounds::Cell& cell, Field field) {
    switch (field) {
      case Field::target_probability_under_draft:
        return cell.target_probability_under_draft;
      case Field::drafted_probability_under_target:
        return cell.drafted_probability_under_target;
      case Field::draft_entropy:
        return cell.draft_entropy;
      case Field::draft_target_entropy:
        return cell.target_entropy;
      default:
        return cell.confidence;
    }
  }

  void add_answer(const RoundRecord& from) {
    const auto round = static_cast<std::int32_t>(shown_.rounds.size()) - 1;
    for (std::int64_t i = 0; i < from.accepted; ++i) {
      const auto at = static_cast<std::int32_t>(i) + 1;
      tell(after_prompt(from.position) + at,
           {token_of(from.drafted.at(static_cast<std::size_t>(i))), round, at});
    }
    tell(after_prompt(from.after()), {token_of(from.next), round, 0});
  }

  /// Accepted tokens after the answer's end are ignored.
  void tell(std::int32_t position, const ShownRounds::Told& told) {
    if (position < 0 || position >= shown_.gen_length) return;
    const auto at = static_cast<std::size_t>(position);
    if (at >= shown_.answer.size()) shown_.answer.resize(at + 1);
    shown_.answer[at] = told;
  }

  const DraftedSequence& sequence_;
  ShownRounds shown_;
};

void add_texts(const TraceReader& trace, ShownRounds& shown) {
  const auto add = [&](std::int32_t token) {
    if (token >= 0 && !shown.texts.contains(token)) {
      shown.texts.emplace(token, readable_token(trace, token));
    }
  };
  for (const ShownRounds::Round& round : shown.rounds) {
    add(round.certain);
    add(round.next);
  }
  for (const ShownRounds::Cell& cell : shown.cells) {
    add(cell.drafted);
    add(cell.target);
  }
  for (const ShownRounds::Candidate& candidate : shown.candidates) add(candidate.token);
  std::vector<std::int64_t> answer;
  for (const ShownRounds::Told& told : shown.answer) {
    add(told.token);
    answer.push_back(told.token);
  }
  shown.runs = end_of_text_runs(answer, EndOfText(trace));
}

}  // namespace

std::size_t ShownRounds::bytes() const {
  std::size_t sum = sizeof(*this) + rounds.size() * sizeof(Round) + cells.size() * sizeof(Cell) +
                    candidates.size() * sizeof(Candidate) +
                    answer.size() * (sizeof(Told) + sizeof(std::int32_t));
  for (const auto& [token, text] : texts) sum += 48 + text.size();
  return sum;
}

const ShownRounds::Cell& ShownRounds::cell(std::size_t round, std::int32_t position) const {
  return cells.at(round * static_cast<std::size_t>(block_length) +
                  static_cast<std::size_t>(position));
}

std::span<const ShownRounds::Candidate> ShownRounds::candidates_at(std::size_t round,
                                                                   std::int32_t position) const {
  const auto width = static_cast<std::size_t>(num_candidates);
  const std::size_t at =
      round * static_cast<std::size_t>(block_length) + static_cast<std::size_t>(position);
  const auto all = std::span(candidates).subspan(at * width, width);
  return all.empty() || all[0].token < 0 ? std::span<const Candidate>() : all;
}

const std::string& ShownRounds::text(std::int32_t token) const {
  static const std::string kNone;
  const auto found = texts.find(token);
  return found == texts.end() ? kNone : found->second;
}

std::size_t ShownRounds::round_of_row(std::int64_t row) const {
  if (row < 0) return rounds.size();
  return static_cast<std::size_t>(std::ranges::find(rounds, row, &Round::row) - rounds.begin());
}

std::shared_ptr<const ShownRounds> read_shown_rounds(const TraceReader& trace,
                                                     std::int64_t sequence,
                                                     const std::vector<BlockSteps>& blocks,
                                                     JobControl& control) {
  const SequenceInfo info = trace.sequence(sequence);
  answer_length(trace, sequence, info);
  const std::size_t rounds = trace.rows_of(sequence).size() / 2;
  const auto block = static_cast<std::size_t>(trace.info().meta.block_length);
  const auto candidates = static_cast<std::size_t>(trace.info().meta.draft_candidates);
  const std::size_t position =
      sizeof(ShownRounds::Cell) + candidates * sizeof(ShownRounds::Candidate);
  control.require(rounds * (kBytesOfRound + 2 * block * position));
  const DraftedSequence read =
      read_rounds(trace, sequence, [&](std::int64_t done, std::int64_t all) {
        control.report(static_cast<double>(done), static_cast<double>(all));
      });
  auto shown = std::make_shared<ShownRounds>(
      RoundsBuilder(trace, read).build(rows_by_position(blocks, sequence)));
  add_texts(trace, *shown);
  return shown;
}

Data<ShownRounds> request_shown_rounds(ViewModel& model) {
  if (model.block() == nullptr) return {};
  return model.ask<ShownRounds>("draft", fmt::format("draft/{}", model.block()->sequence),
                                [sequence = model.block()->sequence,
                                 open = model.documents()[model.selection().trace].overview](
                                    const TraceReader& trace, JobControl& control) {
                                  return read_shown_rounds(trace, sequence, open->blocks, control);
                                });
}

double DraftCounts::tokens_per_round() const {
  if (rounds == 0) return std::numeric_limits<double>::quiet_NaN();
  return static_cast<double>(tokens) / static_cast<double>(rounds);
}

double DraftCounts::survival(std::size_t position) const {
  if (rounds == 0) return std::numeric_limits<double>::quiet_NaN();
  return static_cast<double>(survived.at(position)) / static_cast<double>(rounds);
}

std::size_t DraftTotals::bytes() const {
  return sizeof(*this) +
         sequences.size() * (sizeof(DraftCounts) + trace.survived.size() * sizeof(std::int64_t));
}

std::shared_ptr<const DraftTotals> read_draft_totals(const TraceReader& trace,
                                                     const std::vector<BlockSteps>& blocks,
                                                     JobControl& control) {
  const TraceInfo& info = trace.info();
  auto totals = std::make_shared<DraftTotals>();
  totals->trace.survived.resize(static_cast<std::size_t>(info.meta.block_length));
  totals->sequences.resize(static_cast<std::size_t>(info.num_sequences), totals->trace);
  DraftRounds rounds(trace);
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (i % 256 == 0) control.report(static_cast<double>(i), static_cast<double>(blocks.size()));
    for (const StepRef& step : blocks[i].steps) {
      const auto length = static_cast<std::size_t>(rounds.at(step).length());
      for (DraftCounts* counts :
           {&totals->trace, &totals->sequences.at(static_cast<std::size_t>(step.sequence))}) {
        counts->rounds += 1;
        counts->tokens += static_cast<std::int64_t>(length);
        for (std::size_t p = 0; p < length; ++p) counts->survived.at(p) += 1;
      }
    }
  }
  return totals;
}

Data<DraftTotals> request_draft_totals(ViewModel& model) {
  if (model.overview() == nullptr) return {};
  return model.ask<DraftTotals>("draft totals", "draft totals",
                                [open = model.documents()[model.selection().trace].overview](
                                    const TraceReader& trace, JobControl& control) {
                                  return read_draft_totals(trace, open->blocks, control);
                                });
}

}  // namespace blockscope
