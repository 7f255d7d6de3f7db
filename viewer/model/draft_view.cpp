#include "viewer/model/draft_view.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <string>

#include "decode_record/base/nan.h"

namespace blockscope {
namespace {

std::string quoted(const ShownRounds& rounds, std::int32_t token) {
  if (token < 0) return "not recorded";
  return rounds.has_pieces ? fmt::format("\"{}\" (#{})", rounds.text(token), token)
                           : fmt::format("#{}", token);
}

/// "p 0.1234", "rank 5", both, or "not recorded".
std::string scored(float probability, std::int32_t rank) {
  std::string text;
  if (!std::isnan(probability)) text = fmt::format("p {:.4f}", probability);
  if (rank >= 0) text += fmt::format("{}rank {}", text.empty() ? "" : ", ", rank);
  return text.empty() ? "not recorded" : text;
}

std::string nats(float entropy) {
  return std::isnan(entropy) ? "not recorded" : fmt::format("{:.4f}", entropy);
}

constexpr std::int32_t kListedCandidates = 5;

/// Index of a token among the candidates of a position; -1: none of them.
std::int32_t candidate_of(std::span<const ShownRounds::Candidate> candidates, std::int32_t token) {
  const auto found = std::ranges::find(candidates, token, &ShownRounds::Candidate::token);
  return token < 0 || found == candidates.end()
             ? -1
             : static_cast<std::int32_t>(found - candidates.begin());
}

/// What the selector chose from: the most probable candidates, the one that it took, and the
/// target's.
std::string describe_candidates(const ShownRounds& rounds, const ShownRounds::Cell& cell,
                                std::span<const ShownRounds::Candidate> candidates) {
  if (candidates.empty()) return "";
  const std::int32_t taken = candidate_of(candidates, cell.drafted);
  const std::int32_t wanted = candidate_of(candidates, cell.target);
  std::string text =
      taken < 0 ? fmt::format("\nselector: {} candidates, and which it took is not recorded",
                              candidates.size())
                : fmt::format("\nselector: took candidate {} of {}", taken, candidates.size());
  if (cell.target >= 0) {
    text += wanted < 0 ? "; the target's token is none of them"
                       : fmt::format("; the target's token is candidate {}", wanted);
  }
  for (std::int32_t i = 0; i < static_cast<std::int32_t>(candidates.size()); ++i) {
    if (i >= kListedCandidates && i != taken && i != wanted) continue;
    const ShownRounds::Candidate& candidate = candidates[static_cast<std::size_t>(i)];
    text += fmt::format("\n  {}: {}: {}", i, quoted(rounds, candidate.token),
                        scored(candidate.probability, -1));
    if (!std::isnan(candidate.score)) text += fmt::format(", score {:.3f}", candidate.score);
    if (i == taken) text += ", taken";
    if (i == wanted) text += ", the target's";
  }
  return text;
}

CsvTable::Cell number_or_nothing(float value) { return static_cast<double>(value); }
CsvTable::Cell number_or_nothing(std::int32_t value) {
  return value < 0 ? CsvTable::Cell{} : CsvTable::Cell{std::int64_t{value}};
}

}  // namespace

DraftOutcome outcome_of(const ShownRounds::Round& round, std::int32_t position) {
  if (position <= round.accepted) return DraftOutcome::accepted;
  return position == round.accepted + 1 ? DraftOutcome::rejected : DraftOutcome::behind;
}

const char* name_of(DraftOutcome outcome) {
  constexpr std::array<const char*, 3> kNames = {"accepted", "rejected", "behind"};
  return kNames[static_cast<std::size_t>(outcome)];
}

const DraftColourInfo& info_of(DraftColour colour) {
  using Scale = DraftColourInfo::Scale;
  static constexpr std::array<DraftColourInfo, kDraftColours> kColours = {
      {{"outcome", "accepted or rejected", Scale::outcome},
       {"target_rank_under_draft", "rank of the target's token under the draft", Scale::rank},
       {"drafted_rank_under_target", "rank of the drafted token under the target", Scale::rank},
       {"draft_entropy", "entropy of the draft", Scale::entropy},
       {"target_entropy", "entropy of the target", Scale::entropy},
       {"drafted_probability_under_target", "probability of the drafted token under the target",
        Scale::probability},
       {"target_probability_under_draft", "probability of the target's token under the draft",
        Scale::probability},
       {"confidence", "probability of the drafted token under the draft", Scale::probability}}};
  return kColours.at(static_cast<std::size_t>(colour));
}

float value_of(const ShownRounds::Cell& cell, DraftColour colour) {
  const auto rank = [](std::int32_t value) { return value < 0 ? kNaN : static_cast<float>(value); };
  switch (colour) {
    case DraftColour::outcome:
      return kNaN;
    case DraftColour::target_rank_under_draft:
      return rank(cell.target_rank_under_draft);
    case DraftColour::drafted_rank_under_target:
      return rank(cell.drafted_rank_under_target);
    case DraftColour::draft_entropy:
      return cell.draft_entropy;
    case DraftColour::target_entropy:
      return cell.target_entropy;
    case DraftColour::drafted_probability_under_target:
      return cell.drafted_probability_under_target;
    case DraftColour::target_probability_under_draft:
      return cell.target_probability_under_draft;
    case DraftColour::confidence:
      return cell.confidence;
  }
  return kNaN;
}

bool lacks_token(const ShownRounds::Cell& cell) {
  // Both are also missing where nothing was recorded of the draft; its entropy tells the cases
  // apart.
  return cell.target >= 0 && cell.target_rank_under_draft < 0 &&
         std::isnan(cell.target_probability_under_draft) && !std::isnan(cell.draft_entropy);
}

bool of_targets_token(DraftColour colour) {
  return colour == DraftColour::target_rank_under_draft ||
         colour == DraftColour::target_probability_under_draft;
}

DraftValues count_values(const ShownRounds& rounds, DraftColour colour) {
  DraftValues values;
  for (std::size_t round = 0; round < rounds.rounds.size(); ++round) {
    for (std::int32_t p = 1; p <= rounds.rounds[round].drafted; ++p) {
      const ShownRounds::Cell& cell = rounds.cell(round, p);
      const float value = value_of(cell, colour);
      if (!std::isnan(value)) {
        values.recorded += 1;
        values.largest = std::max(values.largest, value);
      } else if (of_targets_token(colour) && lacks_token(cell)) {
        values.lacking += 1;
      } else {
        values.missing += 1;
      }
    }
  }
  return values;
}

std::size_t rank_class(float rank) {
  constexpr std::array<float, kRankClasses - 1> kEnds = {1.0F, 2.0F, 5.0F, 20.0F, 100.0F};
  return static_cast<std::size_t>(std::ranges::upper_bound(kEnds, rank) - kEnds.begin());
}

const char* name_of_rank_class(std::size_t index) {
  constexpr std::array<const char*, kRankClasses> kNames = {"0",    "1",     "2-4",
                                                            "5-19", "20-99", "100+"};
  return kNames.at(index);
}

std::string describe(const ShownRounds& rounds, std::size_t round, std::int32_t position) {
  const ShownRounds::Round& here = rounds.rounds.at(round);
  const std::int32_t at = here.first_position + position;
  std::string text =
      fmt::format("round {}, block position {}, answer position {}", round, position, at);
  if (position == 0) {
    return text +
           fmt::format("\nthe certain token, decided before: {}", quoted(rounds, here.certain));
  }
  if (at >= rounds.gen_length) text += "\nbeyond the answer's length, so not part of it";
  if (position > here.drafted) {
    if (position != here.accepted + 1) return text + "\nnothing was drafted here";
    return text + fmt::format("\nthe target's own token: {}, after {}\n  under the target: {}",
                              quoted(rounds, here.next),
                              here.drafted == 0 ? "the certain token: nothing was drafted"
                                                : "the drafted tokens, which were all accepted",
                              scored(here.next_probability, -1));
  }
  constexpr std::array<const char*, 3> kSentences = {
      "accepted", "rejected: the target chose another token",
      "after the first rejected token: the target saw other tokens before it"};
  const ShownRounds::Cell& cell = rounds.cell(round, position);
  const DraftOutcome outcome = outcome_of(here, position);
  text += fmt::format("\n{}", kSentences[static_cast<std::size_t>(outcome)]);
  text +=
      fmt::format("\ndrafted token: {}\n  under the draft: {}\n  under the target: {}",
                  quoted(rounds, cell.drafted), scored(cell.confidence, -1),
                  scored(cell.drafted_probability_under_target, cell.drafted_rank_under_target));
  text +=
      fmt::format("\nthe target's token: {}\n  under the draft: {}", quoted(rounds, cell.target),
                  lacks_token(cell)
                      ? "not in its vocabulary"
                      : scored(cell.target_probability_under_draft, cell.target_rank_under_draft));
  if (outcome == DraftOutcome::rejected && !std::isnan(here.next_probability)) {
    text += fmt::format("\n  under the target: p {:.4f}", here.next_probability);
  }
  text += fmt::format("\nentropy in nats\n  of the draft: {}\n  of the target: {}",
                      nats(cell.draft_entropy), nats(cell.target_entropy));
  return text + describe_candidates(rounds, cell, rounds.candidates_at(round, position));
}

std::string describe_told(const ShownRounds& rounds, std::size_t position) {
  const ShownRounds::Told& told = rounds.answer.at(position);
  const std::string token = fmt::format("answer position {}: {}", position,
                                        told.token < 0 ? "a mask" : quoted(rounds, told.token));
  if (told.token < 0) return token;
  if (told.round < 0) return token + "\nthe target's own token, from the prefill";
  const ShownRounds::Round& round = rounds.rounds.at(static_cast<std::size_t>(told.round));
  if (told.drafted_at == 0) {
    return token +
           fmt::format("\nthe target's own token, at the end of round {}\n  under the target: {}",
                       told.round, scored(round.next_probability, -1));
  }
  return token + fmt::format("\ndrafted and accepted in round {} at block position {} of {}",
                             told.round, told.drafted_at, round.drafted);
}

CsvTable draft_rounds_table(const ShownRounds& rounds) {
  std::vector<std::string> columns = {"round",
                                      "block position",
                                      "position",
                                      "outcome",
                                      "drafted token",
                                      "drafted text",
                                      "target token",
                                      "target text",
                                      "rank of target's under draft",
                                      "rank of drafted under target",
                                      "drafted probability under draft",
                                      "target's probability under draft",
                                      "drafted probability under target",
                                      "draft entropy [nats]",
                                      "target entropy [nats]"};
  const bool selector = rounds.num_candidates > 0;
  if (selector) columns.insert(columns.end(), {"candidate taken", "target's candidate"});
  CsvTable table(columns);
  for (std::size_t index = 0; index < rounds.rounds.size(); ++index) {
    const ShownRounds::Round& round = rounds.rounds[index];
    for (std::int32_t p = 1; p <= round.drafted; ++p) {
      const ShownRounds::Cell& cell = rounds.cell(index, p);
      std::vector<CsvTable::Cell> line = {static_cast<std::int64_t>(index),
                                          std::int64_t{p},
                                          std::int64_t{round.first_position + p},
                                          std::string(name_of(outcome_of(round, p))),
                                          number_or_nothing(cell.drafted),
                                          rounds.text(cell.drafted),
                                          number_or_nothing(cell.target),
                                          rounds.text(cell.target),
                                          number_or_nothing(cell.target_rank_under_draft),
                                          number_or_nothing(cell.drafted_rank_under_target),
                                          number_or_nothing(cell.confidence),
                                          number_or_nothing(cell.target_probability_under_draft),
                                          number_or_nothing(cell.drafted_probability_under_target),
                                          number_or_nothing(cell.draft_entropy),
                                          number_or_nothing(cell.target_entropy)};
      if (selector) {
        const auto candidates = rounds.candidates_at(index, p);
        line.push_back(number_or_nothing(candidate_of(candidates, cell.drafted)));
        line.push_back(number_or_nothing(candidate_of(candidates, cell.target)));
      }
      table.add(line);
    }
  }
  return table;
}

CsvTable draft_answer_table(const ShownRounds& rounds) {
  CsvTable table({"position", "token", "text", "round", "drafted at"});
  for (std::size_t at = 0; at < rounds.answer.size(); ++at) {
    const ShownRounds::Told& told = rounds.answer[at];
    if (told.token < 0) continue;
    table.add({static_cast<std::int64_t>(at), std::int64_t{told.token}, rounds.text(told.token),
               number_or_nothing(told.round),
               number_or_nothing(told.drafted_at == 0 ? -1 : told.drafted_at)});
  }
  return table;
}

}  // namespace blockscope
