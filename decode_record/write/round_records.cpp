// Reads the rounds of a trace: see round_records.h.
#include "decode_record/write/round_records.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "decode_record/base/error.h"

namespace blockscope {
namespace {

constexpr std::int64_t kRowsAtATime = 1024;  // fewer of drafts with candidates
constexpr std::size_t kRowsBetweenReports = 64;

/// Some rows of a trace, of whichever sequences.
struct Slab {
  StepColumns steps;
  std::vector<std::int32_t> valid, drafted, accepted, target;
  std::array<std::vector<std::int32_t>, kRoundRanks.size()> ranks;
  std::array<std::vector<float>, kRoundValues.size()> values;
  std::vector<std::int32_t> candidates;
  std::vector<float> candidate_probabilities, candidate_scores;
};

Slab read_slab(const TraceReader& trace, std::int64_t first, std::int64_t count) {
  Slab slab;
  slab.steps = trace.steps(first, count);
  slab.valid = trace.read_ints(Field::step_valid, first, count);
  slab.drafted = trace.read_ints(Field::draft_token, first, count);
  slab.accepted = trace.read_ints(Field::draft_accepted, first, count);
  slab.target = trace.read_ints(Field::draft_target_token, first, count);
  for (std::size_t i = 0; i < kRoundRanks.size(); ++i) {
    slab.ranks[i] = trace.read_ints(kRoundRanks[i].field, first, count);
  }
  for (std::size_t i = 0; i < kRoundValues.size(); ++i) {
    slab.values[i] = trace.read_floats(kRoundValues[i].field, first, count);
  }
  if (trace.has(Field::candidate_token)) {
    slab.candidates = trace.read_ints(Field::candidate_token, first, count);
    slab.candidate_probabilities = trace.read_floats(Field::candidate_probability, first, count);
    slab.candidate_scores = trace.read_floats(Field::candidate_score, first, count);
  }
  return slab;
}

class RoundReader {
 public:
  RoundReader(const TraceReader& trace, std::int64_t sequence)
      : trace_(trace),
        block_(static_cast<std::size_t>(trace.info().meta.block_length)),
        candidates_(static_cast<std::size_t>(trace.info().meta.draft_candidates)),
        of_target_(is_of_target(trace.info().meta)) {
    const SequenceInfo info = trace.sequence(sequence);
    result_.start = {info.name,   info.prompt, info.gen_length,
                     info.answer, info.metric, info.prompt_regions};
    result_.end = {info.finish_reason, info.text, info.score};
    prompt_length_ = static_cast<std::int64_t>(info.prompt.size());
    answer_.assign(static_cast<std::size_t>(info.gen_length), kUnknown);
  }

  DraftedSequence read(const std::vector<std::int64_t>& rows,
                       const std::function<void(std::int64_t, std::int64_t)>& report) {
    const std::int64_t rows_at_a_time =
        std::max<std::int64_t>(1, kRowsAtATime / (1 + static_cast<std::int64_t>(candidates_)));
    for (std::size_t begin = 0; begin < rows.size();) {
      std::size_t end = begin + 1;
      // Rows of a batch's sequences alternate, so other sequences' rows are read too.
      while (end < rows.size() && rows[end] - rows[begin] < rows_at_a_time) ++end;
      const Slab slab = read_slab(trace_, rows[begin], rows[end - 1] - rows[begin] + 1);
      for (; begin < end; ++begin) {
        if (report && begin % kRowsBetweenReports == 0) {
          report(static_cast<std::int64_t>(begin), std::ssize(rows));
        }
        take(slab, static_cast<std::size_t>(rows[begin] - slab.steps.first_row));
      }
    }
    close();
    return std::move(result_);
  }

 private:
  void take(const Slab& slab, std::size_t i) {
    row_ = slab.steps.first_row + static_cast<std::int64_t>(i);
    pass_ns_ = std::max<std::int64_t>(slab.steps.pass_time_ns[i], 0);
    const FrameDelta delta = trace_.delta(row_);
    switch (static_cast<PassKind>(slab.steps.kind[i])) {
      case PassKind::prefill:
        keep(delta);
        break;
      case PassKind::denoise:
        close();
        draft(slab, i);
        keep(delta);
        break;
      case PassKind::commit:
        verify(slab, i, delta);
        break;
    }
  }

  /// Adds the decided tokens. Each later round begins with one of them.
  void keep(const FrameDelta& delta) {
    for (const SequenceDelta& change : delta.rows) {
      for (std::size_t i = 0; i < change.transfer_index.size(); ++i) {
        const auto at = static_cast<std::size_t>(change.transfer_index[i]);
        const auto source = static_cast<std::size_t>(change.transfer_src_index.at(i));
        if (at < answer_.size()) answer_[at] = change.decoded_tokens.at(source);
        if (at != 0) continue;
        result_.first_token = change.decoded_tokens[source];
        result_.first_confidence = change.confidence.at(source);
      }
    }
  }

  std::int64_t decided(std::int64_t position) const {
    const std::int64_t at = position - prompt_length_;
    return at >= 0 && std::cmp_less(at, answer_.size()) ? answer_[static_cast<std::size_t>(at)]
                                                        : kUnknown;
  }

  void draft(const Slab& slab, std::size_t i) {
    round_.emplace();
    round_->position = slab.steps.block_start[i];
    round_->token = decided(round_->position);
    (of_target_ ? round_->target_ns : round_->draft_ns) = pass_ns_;
    const std::size_t begin = i * block_;
    std::size_t count = 0;
    // A last position without a row of its own was drafted, too (docs/trace_format.md, "Drafts").
    const auto is_drafted = [&](std::size_t p) {
      return slab.valid[p] != 0 || slab.drafted[p] != kUnknown;
    };
    while (count + 1 < block_ && is_drafted(begin + count + 1)) ++count;
    const auto fill = [&](auto& to, const auto& column, std::size_t width = 1) {
      const auto first = column.begin() + static_cast<std::ptrdiff_t>((begin + 1) * width);
      to.assign(first, first + static_cast<std::ptrdiff_t>(count * width));
    };
    fill(round_->drafted, slab.drafted);
    fill(round_->target, slab.target);
    for (std::size_t k = 0; k < kRoundRanks.size(); ++k) fill(round_->ranks[k], slab.ranks[k]);
    for (std::size_t k = 0; k < kRoundValues.size(); ++k) fill(round_->values[k], slab.values[k]);
    fill_candidates(slab, fill);
    round_->accepted = slab.accepted[i];
    const std::int64_t vocabulary = trace_.info().meta.vocab_size;
    check(Field::draft_accepted, round_->accepted, 0, static_cast<std::int64_t>(count));
    for (std::size_t k = 0; k < count; ++k) {
      const bool accepted = std::cmp_less(k, round_->accepted);
      check(Field::draft_token, round_->drafted[k], accepted ? 0 : kUnknown, vocabulary - 1);
    }
    for (const std::int64_t token : round_->target) {
      check(Field::draft_target_token, token, kUnknown, vocabulary - 1);
    }
    for (const std::int64_t token : round_->candidates.tokens) {
      check(Field::candidate_token, token, kUnknown, vocabulary - 1);
    }
  }

  /// Nothing if none of the round's candidates is known.
  void fill_candidates(const Slab& slab, const auto& fill) {
    if (slab.candidates.empty()) return;
    RoundCandidates& to = round_->candidates;
    fill(to.tokens, slab.candidates, candidates_);
    if (std::ranges::all_of(to.tokens, [](std::int64_t token) { return token == kUnknown; })) {
      to.tokens.clear();
      return;
    }
    fill(to.probabilities, slab.candidate_probabilities, candidates_);
    fill(to.scores, slab.candidate_scores, candidates_);
  }

  void verify(const Slab& slab, std::size_t i, const FrameDelta& delta) {
    if (!round_) {  // nothing was drafted
      round_.emplace();
      round_->position = slab.steps.block_start[i];
      round_->token = decided(round_->position);
    }
    const bool drafted = !round_->drafted.empty();
    (of_target_ && drafted ? round_->draft_ns : round_->target_ns) = pass_ns_;
    keep(delta);
    for (const SequenceDelta& change : delta.rows) {
      for (std::size_t k = 0; k < change.transfer_index.size(); ++k) {
        if (change.transfer_index[k] + prompt_length_ != round_->after()) continue;
        round_->next_confidence =
            change.confidence.at(static_cast<std::size_t>(change.transfer_src_index.at(k)));
      }
    }
    close();
  }

  /// Adds the round to the result.
  void close() {
    if (!round_) return;
    round_->next = decided(round_->after());
    const auto rejected = static_cast<std::size_t>(round_->accepted);
    if (round_->next == kUnknown && rejected < round_->target.size()) {
      round_->next = round_->target[rejected];
    }
    result_.rounds.push_back(std::move(*round_));
    round_.reset();
  }

  void check(Field field, std::int64_t value, std::int64_t least, std::int64_t most) const {
    if (value >= least && value <= most) return;
    throw CorruptTrace(
        fmt::format("{}:{}: row {}: expected {} to {}, got {}. HINT: the file is damaged.",
                    trace_.info().path, spec_of(field).path, row_, least, most, value));
  }

  const TraceReader& trace_;
  const std::size_t block_;
  const std::size_t candidates_;  // C
  const bool of_target_;
  DraftedSequence result_;
  std::int64_t prompt_length_ = 0;
  std::vector<std::int64_t> answer_;  // by position after the prompt
  std::optional<RoundRecord> round_;  // a round that waits for the target's pass
  std::int64_t row_ = 0;
  std::int64_t pass_ns_ = 0;  // of the row
};

}  // namespace

std::int64_t RoundCandidates::find(std::size_t at, std::int64_t token, std::int64_t count) const {
  if (tokens.empty() || token == kUnknown) return kUnknown;
  const auto first = tokens.begin() + static_cast<std::int64_t>(at) * count;
  const auto found = std::find(first, first + count, token);
  return found == first + count ? kUnknown : found - first;
}

bool is_of_target(const TraceMeta& meta) {
  const auto model = nlohmann::json::parse(meta.model_json, nullptr, /*allow_exceptions=*/false);
  return meta.has_draft && model.is_object() && model.contains("draft");
}

DraftedSequence read_rounds(const TraceReader& trace, std::int64_t sequence,
                            const std::function<void(std::int64_t, std::int64_t)>& report) {
  return RoundReader(trace, sequence).read(trace.rows_of(sequence), report);
}

}  // namespace blockscope
