#include "analysis/metrics/draft_rounds.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "decode_record/base/error.h"

namespace blockscope {
namespace {

constexpr std::int64_t kRowsAtATime = 1024;

}  // namespace

DraftRounds::DraftRounds(const TraceReader& trace)
    : trace_(trace),
      block_length_(static_cast<std::size_t>(trace.info().meta.block_length)),
      ends_(static_cast<std::size_t>(trace.info().num_sequences), -1) {}

void DraftRounds::load(std::int64_t row) {
  first_ = row;
  count_ = std::min(kRowsAtATime, trace_.info().num_rows - row);
  valid_ = trace_.read_ints(Field::step_valid, first_, count_);
  token_ = trace_.read_ints(Field::draft_token, first_, count_);
  accepted_ = trace_.read_ints(Field::draft_accepted, first_, count_);
  drafted_rank_under_target_ = trace_.read_ints(Field::drafted_rank_under_target, first_, count_);
  target_rank_under_draft_ = trace_.read_ints(Field::target_rank_under_draft, first_, count_);
  draft_entropy_ = trace_.read_floats(Field::draft_entropy, first_, count_);
  target_entropy_ = trace_.read_floats(Field::draft_target_entropy, first_, count_);
  target_token_ = trace_.read_ints(Field::draft_target_token, first_, count_);
  confidence_ = trace_.read_floats(Field::draft_confidence, first_, count_);
  if (!trace_.has(Field::candidate_chosen)) return;
  candidate_chosen_ = trace_.read_ints(Field::candidate_chosen, first_, count_);
  candidate_target_ = trace_.read_ints(Field::candidate_target, first_, count_);
}

std::int64_t DraftRounds::end_of(std::int64_t sequence) {
  std::int64_t& end = ends_.at(static_cast<std::size_t>(sequence));
  if (end < 0) {
    const SequenceInfo info = trace_.sequence(sequence);
    end = std::ssize(info.prompt) + info.gen_length;
  }
  return end;
}

DraftRound DraftRounds::at(const StepRef& step) {
  if (step.row < first_ || step.row >= first_ + count_) load(step.row);
  const auto i = static_cast<std::size_t>(step.row - first_);
  const std::size_t from = i * block_length_;
  // From another engine, a round may be shorter than a block, and its tokens after the accepted
  // ones may be unknown. If the first row predicts, too, the last drafted position has no row.
  DraftRound round;
  const auto drafted = [&](std::size_t position) {
    return valid_[from + position] != 0 || token_[from + position] >= 0;
  };
  while (std::cmp_less(round.drafted + 1, block_length_) &&
         drafted(static_cast<std::size_t>(round.drafted) + 1)) {
    ++round.drafted;
  }
  round.accepted = accepted_[i];
  if (round.accepted < 0 || round.accepted > round.drafted) {
    throw CorruptTrace(fmt::format(
        "{}:/draft/accepted: row {}: expected 0 to {} in a denoising row, got {}. HINT: the file "
        "is damaged.",
        trace_.info().path, step.row, round.drafted, round.accepted));
  }
  const std::int64_t behind = end_of(step.sequence) - 1 - step.block_start;
  round.inside = std::clamp<std::int64_t>(behind, 0, round.drafted);
  round.drafted_rank_under_target =
      std::span(drafted_rank_under_target_).subspan(from, block_length_);
  round.target_rank_under_draft = std::span(target_rank_under_draft_).subspan(from, block_length_);
  round.draft_entropy = std::span(draft_entropy_).subspan(from, block_length_);
  round.target_entropy = std::span(target_entropy_).subspan(from, block_length_);
  round.token = std::span(token_).subspan(from, block_length_);
  round.target_token = std::span(target_token_).subspan(from, block_length_);
  round.confidence = std::span(confidence_).subspan(from, block_length_);
  if (candidate_chosen_.empty()) return round;
  round.candidate_chosen = std::span(candidate_chosen_).subspan(from, block_length_);
  round.candidate_target = std::span(candidate_target_).subspan(from, block_length_);
  return round;
}

std::string task_of(const std::string& name) {
  constexpr std::string_view kDigits = "0123456789";
  constexpr std::string_view kBetween = "-_./:# ";
  std::string_view task = name;
  while (true) {
    const std::size_t last = task.find_last_not_of(kDigits);
    const bool number = last != std::string_view::npos && last + 1 < task.size();
    if (!number || kBetween.find(task[last]) == std::string_view::npos || last == 0) break;
    task = task.substr(0, last);
  }
  return std::string(task);
}

}  // namespace blockscope
