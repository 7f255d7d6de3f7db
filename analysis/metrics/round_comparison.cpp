#include "analysis/metrics/round_comparison.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "decode_record/base/error.h"

namespace blockscope {
namespace {

std::string in_both(std::string_view what, std::int64_t a, std::int64_t b) {
  return fmt::format("{}: {} in A, {} in B", what, a, b);
}

/// The first element that both have and that differs; -1 if there is none.
std::int64_t first_apart(const std::vector<std::int64_t>& a, const std::vector<std::int64_t>& b) {
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    if (a[i] != kUnknown && b[i] != kUnknown && a[i] != b[i]) return static_cast<std::int64_t>(i);
  }
  return -1;
}

/// Differences of a round in the values that both have; empty if there are none.
std::vector<std::string> reasons_of(const RoundRecord& a, const RoundRecord& b) {
  std::vector<std::string> reasons;
  const auto number = [&](const char* what, std::int64_t in_a, std::int64_t in_b) {
    if (in_a != kUnknown && in_b != kUnknown && in_a != in_b) {
      reasons.push_back(in_both(what, in_a, in_b));
    }
  };
  const auto list = [&](const char* what, const std::vector<std::int64_t>& in_a,
                        const std::vector<std::int64_t>& in_b) {
    const std::int64_t at = first_apart(in_a, in_b);
    if (at < 0) return;
    const auto i = static_cast<std::size_t>(at);
    reasons.push_back(
        in_both(fmt::format("{} at block position {}", what, at + 1), in_a[i], in_b[i]));
  };
  number("certain token", a.token, b.token);
  number("drafted tokens", std::ssize(a.drafted), std::ssize(b.drafted));
  list("drafted token", a.drafted, b.drafted);
  number("accepted", a.accepted, b.accepted);
  list("target's choice", a.target, b.target);
  number("next token", a.next, b.next);
  return reasons;
}

/// The rounds of one sequence, by their start positions in the answer.
class Walk {
 public:
  explicit Walk(const DraftedSequence& sequence)
      : rounds_(sequence.rounds), origin_(std::ssize(sequence.start.prompt)) {}
  bool done() const { return at_ == rounds_.size(); }
  const RoundRecord& round() const { return rounds_[at_]; }
  std::int64_t number() const { return static_cast<std::int64_t>(at_); }
  std::int64_t position() const {
    return done() ? std::numeric_limits<std::int64_t>::max() : round().position - origin_;
  }
  void advance() { ++at_; }

 private:
  const std::vector<RoundRecord>& rounds_;
  std::int64_t origin_;
  std::size_t at_ = 0;
};

}  // namespace

RoundPairs pair_rounds(const DraftedSequence& a, const DraftedSequence& b) {
  RoundPairs result;
  result.rounds_a = std::ssize(a.rounds);
  result.rounds_b = std::ssize(b.rounds);
  Walk in_a(a);
  Walk in_b(b);
  while (!in_a.done() || !in_b.done()) {
    const std::int64_t position = std::min(in_a.position(), in_b.position());
    const bool has_a = in_a.position() == position;
    const bool has_b = in_b.position() == position;
    std::vector<std::string> reasons;
    if (has_a && has_b) {
      ++result.lined_up;
      reasons = reasons_of(in_a.round(), in_b.round());
      if (reasons.empty()) ++result.equal;
    } else {
      reasons = {has_a ? "B has no round at this position" : "A has no round at this position"};
    }
    if (result.same() && !reasons.empty()) {
      result.position = position;
      result.first_a = has_a ? in_a.number() : -1;
      result.first_b = has_b ? in_b.number() : -1;
      result.reasons = std::move(reasons);
    }
    if (has_a) in_a.advance();
    if (has_b) in_b.advance();
  }
  return result;
}

void AcceptanceMean::add(const DraftedSequence& sequence) {
  for (const RoundRecord& round : sequence.rounds) {
    if (round.drafted.empty()) continue;
    ++rounds;
    tokens += round.accepted + 1;
  }
}

double AcceptanceMean::value() const {
  if (rounds == 0) return std::numeric_limits<double>::quiet_NaN();
  return static_cast<double>(tokens) / static_cast<double>(rounds);
}

bool RoundsComparison::same() const {
  return only_a.empty() && only_b.empty() &&
         std::ranges::all_of(pairs, [](const SequenceRounds& pair) {
           return pair.sequences.same_prompt && pair.rounds.same();
         });
}

std::string rounds_obstacle(const TraceMeta& a, const TraceMeta& b) {
  if (!a.has_draft || !b.has_draft) {
    return fmt::format("expected two traces of drafts, got {}", a.has_draft   ? "none in the second"
                                                                : b.has_draft ? "none in the first"
                                                                              : "none in either");
  }
  if (a.vocab_size != b.vocab_size) {
    return fmt::format("expected one vocabulary, got one of {} and one of {}", a.vocab_size,
                       b.vocab_size);
  }
  return {};
}

RoundsComparison compare_rounds(const TraceReader& a, const TraceReader& b) {
  const std::string obstacle = rounds_obstacle(a.info().meta, b.info().meta);
  if (!obstacle.empty()) {
    throw UsageError(
        fmt::format("rounds of {} and {}: {}. HINT: capture with --draft, or import "
                    "with the target's vocabulary",
                    a.info().path, b.info().path, obstacle));
  }
  SequenceMatches matches = match_sequences(a, b);
  RoundsComparison result;
  result.only_a = std::move(matches.only_a);
  result.only_b = std::move(matches.only_b);
  for (const SequenceMatch& match : matches.pairs) {
    SequenceRounds& pair = result.pairs.emplace_back();
    pair.sequences = match;
    pair.name = a.sequence(match.a).name;
    if (!match.same_prompt) continue;
    const DraftedSequence in_a = read_rounds(a, match.a);
    const DraftedSequence in_b = read_rounds(b, match.b);
    pair.rounds = pair_rounds(in_a, in_b);
    result.accepted_a.add(in_a);
    result.accepted_b.add(in_b);
    result.rounds_a += pair.rounds.rounds_a;
    result.rounds_b += pair.rounds.rounds_b;
    result.lined_up += pair.rounds.lined_up;
    result.equal += pair.rounds.equal;
  }
  return result;
}

}  // namespace blockscope
