#include "viewer/draft_rounds.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "decode_record/error.h"
#include "viewer/queries.h"

namespace blockscope {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
/// Rows read together, and rows between two reports of a job.
constexpr std::int64_t kRowsOfSequence = 1024;
constexpr std::int64_t kRowsOfTrace = 16384;

std::int64_t checked_accepted(const TraceReader& trace, std::int64_t row, std::int32_t accepted) {
  const std::int64_t most = trace.info().meta.block_length - 1;
  if (accepted >= -1 && accepted <= most) return accepted;
  throw CorruptTrace(fmt::format("{}:/draft/accepted: row {}: expected at most {}, got {}",
                                 trace.info().path, row, most, accepted));
}

/// The columns of some rows.
struct Window {
  Window(const TraceReader& trace, std::int64_t first, std::int64_t count)
      : steps(trace.steps(first, count)),
        accepted(trace.read_ints(Field::draft_accepted, first, count)),
        drafted(trace.read_ints(Field::prediction_token, first, count)),
        target(trace.read_ints(Field::draft_target_token, first, count)),
        target_rank(trace.read_ints(Field::draft_target_rank, first, count)),
        draft_rank(trace.read_ints(Field::draft_token_rank, first, count)),
        confidence(trace.read_floats(Field::prediction_confidence, first, count)),
        target_probability(trace.read_floats(Field::draft_target_probability, first, count)),
        draft_probability(trace.read_floats(Field::draft_token_probability, first, count)),
        draft_entropy(trace.read_floats(Field::draft_entropy, first, count)),
        target_entropy(trace.read_floats(Field::draft_target_entropy, first, count)) {}

  DraftRounds::Cell cell(std::size_t at) const {
    return {drafted[at],           target[at],        target_rank[at],
            draft_rank[at],        confidence[at],    target_probability[at],
            draft_probability[at], draft_entropy[at], target_entropy[at]};
  }

  StepColumns steps;
  std::vector<std::int32_t> accepted, drafted, target, target_rank, draft_rank;
  std::vector<float> confidence, target_probability, draft_probability, draft_entropy,
      target_entropy;
};

class SequenceReader {
 public:
  SequenceReader(const TraceReader& trace, std::int64_t sequence)
      : trace_(trace), info_(trace.sequence(sequence)) {
    rounds_.block_length = static_cast<std::int32_t>(trace.info().meta.block_length);
    rounds_.gen_length = static_cast<std::int32_t>(answer_length(trace, sequence, info_));
    rounds_.has_pieces = trace.num_pieces() > 0;
  }

  void add(const Window& window, std::int64_t row) {
    const auto i = static_cast<std::size_t>(row - window.steps.first_row);
    switch (static_cast<PassKind>(window.steps.kind[i])) {
      case PassKind::denoise:
        add_round(window, i);
        take(row, [this](std::int32_t position) {
          const std::int32_t at = position - rounds_.rounds.back().first_position;
          return at > 0 && at < rounds_.block_length ? at : 0;
        });
        break;
      case PassKind::commit:
        take(row, [](std::int32_t) { return 0; });
        if (!rounds_.rounds.empty()) {
          rounds_.rounds.back().target_ns += window.steps.pass_time_ns[i];
        }
        break;
      case PassKind::prefill:
        take(row, [](std::int32_t) { return 0; });
    }
  }

  DraftRounds finish() {
    for (const auto& round : rounds_.rounds) {
      for (const std::int32_t token : {round.certain, round.next}) add_text(token);
    }
    for (const auto& cell : rounds_.cells) {
      for (const std::int32_t token : {cell.drafted, cell.target}) add_text(token);
    }
    for (const auto& told : rounds_.answer) add_text(told.token);
    return std::move(rounds_);
  }

 private:
  void add_round(const Window& window, std::size_t i) {
    DraftRounds::Round round;
    round.row = window.steps.first_row + static_cast<std::int64_t>(i);
    round.block = window.steps.block[i];
    round.first_position =
        window.steps.block_start[i] - static_cast<std::int32_t>(info_.prompt.size());
    round.accepted =
        static_cast<std::int32_t>(checked_accepted(trace_, round.row, window.accepted[i]));
    round.certain = token_at(round.first_position);
    round.next_probability = kNaN;
    round.draft_ns = window.steps.pass_time_ns[i];
    rounds_.rounds.push_back(round);
    const auto block = static_cast<std::size_t>(rounds_.block_length);
    for (std::size_t p = 0; p < block; ++p) {
      rounds_.cells.push_back(window.cell(i * block + p));
    }
  }

  std::int32_t token_at(std::int32_t position) const {
    const auto before = static_cast<std::int64_t>(info_.prompt.size()) + position;
    if (position < 0) {
      return before < 0 ? -1
                        : static_cast<std::int32_t>(info_.prompt[static_cast<std::size_t>(before)]);
    }
    const auto at = static_cast<std::size_t>(position);
    return at < rounds_.answer.size() ? rounds_.answer[at].token : -1;
  }

  /// What a row told of the answer; `drafted_at` says which position of its block that was.
  template <typename DraftedAt>
  void take(std::int64_t row, const DraftedAt& drafted_at) {
    const bool commit = !rounds_.rounds.empty() && row != rounds_.rounds.back().row;
    for (const SequenceDelta& delta : trace_.delta(row).rows) {
      for (std::size_t k = 0; k < delta.transfer_index.size(); ++k) {
        const std::int64_t position = delta.transfer_index[k];
        if (position < 0) {
          throw CorruptTrace(fmt::format("{}: row {}: expected positions of at least 0, got {}",
                                         trace_.info().path, row, position));
        }
        if (position >= rounds_.gen_length) continue;
        const auto at = static_cast<std::size_t>(position);
        if (at >= rounds_.answer.size()) rounds_.answer.resize(at + 1);
        const auto token = static_cast<std::int32_t>(delta.decoded_tokens[k]);
        rounds_.answer[at] = {token, static_cast<std::int32_t>(rounds_.rounds.size()) - 1,
                              drafted_at(static_cast<std::int32_t>(position))};
        if (!commit) continue;
        rounds_.rounds.back().next = token;
        rounds_.rounds.back().next_probability = delta.confidence[k];
      }
    }
  }

  void add_text(std::int32_t token) {
    if (token >= 0 && !rounds_.texts.contains(token)) {
      rounds_.texts.emplace(token, readable_token(trace_, token));
    }
  }

  const TraceReader& trace_;
  SequenceInfo info_;
  DraftRounds rounds_;
};

}  // namespace

std::size_t DraftRounds::bytes() const {
  std::size_t sum = sizeof(*this) + rounds.size() * sizeof(Round) + cells.size() * sizeof(Cell) +
                    answer.size() * sizeof(Told);
  for (const auto& [token, text] : texts) sum += 48 + text.size();
  return sum;
}

const DraftRounds::Cell& DraftRounds::cell(std::size_t round, std::int32_t position) const {
  return cells.at(round * static_cast<std::size_t>(block_length) +
                  static_cast<std::size_t>(position));
}

const std::string& DraftRounds::text(std::int32_t token) const {
  static const std::string kNone;
  const auto found = texts.find(token);
  return found == texts.end() ? kNone : found->second;
}

std::int32_t DraftRounds::target_of(std::size_t round) const {
  const Round& here = rounds.at(round);
  if (here.next >= 0 || here.accepted < 0 || here.accepted + 1 >= block_length) return here.next;
  return cell(round, here.accepted + 1).target;
}

std::size_t DraftRounds::round_of_row(std::int64_t row) const {
  const auto found = std::ranges::lower_bound(rounds, row, {}, &Round::row);
  return found != rounds.end() && found->row == row
             ? static_cast<std::size_t>(found - rounds.begin())
             : rounds.size();
}

std::shared_ptr<const DraftRounds> read_draft_rounds(const TraceReader& trace,
                                                     std::int64_t sequence, JobControl& control) {
  const std::vector<std::int64_t> rows = trace.rows_of(sequence);
  control.require(rows.size() / 2 * static_cast<std::size_t>(trace.info().meta.block_length) *
                  sizeof(DraftRounds::Cell));
  SequenceReader reader(trace, sequence);
  for (auto row = rows.begin(); row != rows.end();) {
    control.report(static_cast<double>(row - rows.begin()), static_cast<double>(rows.size()));
    const auto end = std::ranges::lower_bound(row, rows.end(), *row + kRowsOfSequence);
    const Window window(trace, *row, *std::prev(end) + 1 - *row);
    for (; row != end; ++row) {
      if ((row - rows.begin()) % 64 == 0) {
        control.report(static_cast<double>(row - rows.begin()), static_cast<double>(rows.size()));
      }
      reader.add(window, *row);
    }
  }
  return std::make_shared<DraftRounds>(reader.finish());
}

double DraftCounts::tokens_per_round() const {
  const auto all = static_cast<double>(std::max<std::int64_t>(rounds, 1));
  return static_cast<double>(decided) / all + 1.0;
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
                                                     JobControl& control) {
  const TraceInfo& info = trace.info();
  const auto block = static_cast<std::size_t>(info.meta.block_length);
  auto totals = std::make_shared<DraftTotals>();
  totals->trace.survived.resize(block);
  totals->sequences.resize(static_cast<std::size_t>(info.num_sequences), totals->trace);
  std::vector<std::int64_t> ends(totals->sequences.size(), -1);  // positions behind the answers
  const std::vector<std::uint8_t> aborted = trace.aborted();
  for (std::int64_t first = 0; first < info.num_rows; first += kRowsOfTrace) {
    control.report(static_cast<double>(first), static_cast<double>(info.num_rows));
    const std::int64_t count = std::min(kRowsOfTrace, info.num_rows - first);
    const StepColumns steps = trace.steps(first, count);
    const auto accepted = trace.read_ints(Field::draft_accepted, first, count);
    for (std::size_t i = 0; i < accepted.size(); ++i) {
      const auto sequence = static_cast<std::size_t>(steps.sequence[i]);
      if (static_cast<PassKind>(steps.kind[i]) != PassKind::denoise || aborted.at(sequence) != 0) {
        continue;
      }
      const std::int64_t row = first + static_cast<std::int64_t>(i);
      const std::int64_t length = checked_accepted(trace, row, accepted[i]);
      std::int64_t& end = ends.at(sequence);
      if (end < 0) {
        const SequenceInfo about = trace.sequence(steps.sequence[i]);
        end = std::ssize(about.prompt) + std::max<std::int64_t>(0, about.gen_length);
      }
      const std::int64_t room = std::max<std::int64_t>(0, end - 1 - steps.block_start[i]);
      for (DraftCounts* counts : {&totals->trace, &totals->sequences[sequence]}) {
        if (length < 0) {
          counts->unknown += 1;
          continue;
        }
        counts->rounds += 1;
        counts->decided += std::min(length, room);
        for (std::int64_t p = 0; p <= length; ++p)
          counts->survived[static_cast<std::size_t>(p)] += 1;
      }
    }
  }
  return totals;
}

}  // namespace blockscope
