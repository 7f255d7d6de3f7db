#include "decode_record/interchange/import_round_line.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "decode_record/base/nan.h"
#include "decode_record/interchange/import_state.h"

namespace blockscope {
namespace {

constexpr std::int64_t kLongestPass = std::int64_t{1} << 60;  // ns
constexpr double kMostProbability = 1.01;                     // above 1, because sums are rounded
constexpr double kMostEntropy = 1e6;                          // nats
constexpr double kMostScore = std::numeric_limits<float>::max();

std::int64_t count_accepted(const JsonNode& line, const std::vector<std::int64_t>& drafted,
                            const std::vector<std::int64_t>& target) {
  std::size_t count = 0;
  while (count < drafted.size() && drafted[count] != kUnknown && drafted[count] == target[count]) {
    ++count;
  }
  if (count < drafted.size() && (target[count] == kUnknown || drafted[count] == kUnknown)) {
    line.complain(
        "accepted: expected a number, because drafted and target do not determine it, got none");
  }
  return static_cast<std::int64_t>(count);
}

std::vector<std::int64_t> read_ranks(const JsonNode& line, const char* name, std::size_t count,
                                     std::int64_t vocab_size) {
  std::vector<std::int64_t> ranks;
  if (!given(line, name)) return ranks;
  for (const JsonNode& node : line.member(name).elements(static_cast<std::int64_t>(count))) {
    ranks.push_back(node.is_null() ? kUnknown : read_known_token(node, vocab_size));
  }
  return ranks;
}

std::vector<float> read_values(const JsonNode& line, const RoundColumn& column, std::size_t count) {
  std::vector<float> values;
  if (!given(line, column.name)) return values;
  const bool entropy =
      column.field == Field::draft_entropy || column.field == Field::draft_target_entropy;
  const double most = entropy ? kMostEntropy : kMostProbability;
  for (const JsonNode& node : line.member(column.name).elements(static_cast<std::int64_t>(count))) {
    values.push_back(static_cast<float>(node.number_or_null(0.0, most)));
  }
  return values;
}

/// [n, C]; NaN where they are not known. `tokens`: the candidates, also [n, C].
std::vector<float> read_candidate_values(const JsonNode& line, const char* name,
                                         const std::vector<std::int64_t>& tokens,
                                         std::int64_t candidates, double least, double most) {
  std::vector<float> values;
  if (!given(line, name)) return values;
  const std::int64_t count = std::ssize(tokens) / candidates;
  for (const JsonNode& position : line.member(name).elements(count)) {
    if (position.is_null()) {
      values.resize(values.size() + static_cast<std::size_t>(candidates), kNaN);
      continue;
    }
    if (tokens[values.size()] == kUnknown) {
      position.refuse("null, because candidate_token has none there");
    }
    for (const JsonNode& node : position.elements(candidates)) {
      values.push_back(static_cast<float>(node.number_or_null(least, most)));
    }
  }
  return values;
}

/// The first candidate counts as the draft's most probable token.
void check_falling(const JsonNode& line, const std::vector<float>& probabilities,
                   std::int64_t candidates) {
  float before = 0.0F;
  for (std::size_t i = 0; i < probabilities.size(); ++i) {
    const bool first = std::cmp_equal(i % static_cast<std::size_t>(candidates), 0);
    if (!first && probabilities[i] > before) {
      line.member(kCandidateColumns[1])
          .complain(fmt::format("expected the candidates by falling probability, got {} after {}",
                                probabilities[i], before));
    }
    if (first || !std::isnan(probabilities[i])) before = probabilities[i];
  }
}

std::int64_t read_time(const JsonNode& line, const char* name) {
  return given(line, name) ? line.member(name).integer(0, kLongestPass) : 0;
}

}  // namespace

std::int64_t read_known_token(const JsonNode& node, std::int64_t vocab_size) {
  return node.integer(0, vocab_size - 1);
}

float read_probability(const JsonNode& line, const char* name) {
  if (!given(line, name)) return std::numeric_limits<float>::quiet_NaN();
  return static_cast<float>(line.member(name).number(0.0, kMostProbability));
}

void read_decision(const JsonNode& line, std::int64_t vocab_size, RoundRecord& round) {
  const std::size_t count = round.drafted.size();
  std::vector<std::int64_t> target(count + 1, kUnknown);
  if (given(line, "target")) {
    const auto elements = line.member("target").elements();
    if (elements.size() != count && elements.size() != count + 1) {
      line.member("target").refuse(fmt::format(
          "an array of {}, or of {} with the token after the last one", count, count + 1));
    }
    for (std::size_t i = 0; i < elements.size(); ++i) {
      if (!elements[i].is_null()) target[i] = read_known_token(elements[i], vocab_size);
    }
  }
  if (given(line, "accepted")) {
    round.accepted = line.member("accepted").integer(0, static_cast<std::int64_t>(count));
  } else {
    round.accepted = count_accepted(line, round.drafted, target);
  }
  const auto accepted = static_cast<std::size_t>(round.accepted);
  for (std::size_t i = 0; i < accepted; ++i) {
    if (round.drafted[i] == kUnknown) {
      line.member("drafted").elements()[i].refuse("a token, because it was accepted");
    }
    if (target[i] == kUnknown) target[i] = round.drafted[i];
    if (target[i] == round.drafted[i]) continue;
    line.member("accepted")
        .refuse(
            fmt::format("at most {}, because the target decided on {} there and the draft on {}", i,
                        target[i], round.drafted[i]));
  }
  if (given(line, "next")) {
    round.next = read_known_token(line.member("next"), vocab_size);
    if (target[accepted] != kUnknown && target[accepted] != round.next) {
      line.member("next").refuse(fmt::format("{}, as target has", target[accepted]));
    }
    target[accepted] = round.next;
  }
  round.next = target[accepted];
  target.resize(count);
  round.target = std::move(target);
}

void read_candidates(const JsonNode& line, std::int64_t vocab_size, std::int64_t candidates,
                     RoundRecord& round) {
  for (const char* name : kCandidateColumns) {
    if (!given(line, name)) continue;
    if (candidates == 0)
      line.member(name).complain("expected draft_candidates in the header, got none");
    if (!given(line, kCandidateColumns[0])) {
      line.member(name).complain("expected candidate_token beside it, got none");
    }
  }
  if (!given(line, kCandidateColumns[0])) return;
  const std::size_t count = round.drafted.size();
  RoundCandidates& known = round.candidates;
  const JsonNode tokens = line.member(kCandidateColumns[0]);
  const std::vector<JsonNode> positions = tokens.elements(static_cast<std::int64_t>(count));
  for (std::size_t i = 0; i < count; ++i) {
    if (positions[i].is_null()) {
      known.tokens.resize(known.tokens.size() + static_cast<std::size_t>(candidates), kUnknown);
      continue;
    }
    for (const JsonNode& node : positions[i].elements(candidates)) {
      const std::int64_t token = read_known_token(node, vocab_size);
      const auto first = known.tokens.begin() + static_cast<std::int64_t>(i) * candidates;
      if (std::find(first, known.tokens.end(), token) != known.tokens.end()) {
        node.refuse("a token that is not a candidate yet");
      }
      known.tokens.push_back(token);
    }
    if (round.drafted[i] != kUnknown && known.find(i, round.drafted[i], candidates) == kUnknown) {
      positions[i].complain(fmt::format(
          "expected the drafted token {} among the candidates, got none", round.drafted[i]));
    }
  }
  known.probabilities = read_candidate_values(line, kCandidateColumns[1], known.tokens, candidates,
                                              0.0, kMostProbability);
  check_falling(line, known.probabilities, candidates);
  known.scores = read_candidate_values(line, kCandidateColumns[2], known.tokens, candidates,
                                       -kMostScore, kMostScore);
}

void read_columns(const JsonNode& line, std::int64_t vocab_size, RoundRecord& round) {
  const std::size_t count = round.drafted.size();
  for (std::size_t i = 0; i < kRoundRanks.size(); ++i) {
    round.ranks[i] = read_ranks(line, kRoundRanks[i].name, count, vocab_size);
  }
  for (std::size_t i = 0; i < kRoundValues.size(); ++i) {
    round.values[i] = read_values(line, kRoundValues[i], count);
  }
  round.next_confidence = read_probability(line, "next_confidence");
  round.draft_ns = read_time(line, "draft_ns");
  round.target_ns = read_time(line, "target_ns");
}

}  // namespace blockscope
