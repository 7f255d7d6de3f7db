#include "analysis/metrics/teacher_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "analysis/metrics/trace_comparison.h"
#include "decode_record/base/error.h"
#include "decode_record/base/text.h"
#include "decode_record/write/round_records.h"

namespace blockscope {
namespace {

constexpr std::int64_t kStepsAtATime = 16384;

/// The steps of every sequence, in the order in which they ran.
std::map<std::int64_t, std::vector<TeacherRow>> steps_of(const TraceReader& trace) {
  std::map<std::int64_t, std::vector<TeacherRow>> found;
  const std::int64_t rows = trace.info().num_rows;
  const bool continuous = trace.info().meta.continuous();
  for (std::int64_t first = 0; first < rows; first += kStepsAtATime) {
    const StepColumns steps = trace.steps(first, std::min(kStepsAtATime, rows - first));
    for (std::size_t i = 0; i < static_cast<std::size_t>(steps.count); ++i) {
      if (!is_step(static_cast<PassKind>(steps.kind[i]), continuous)) continue;
      found[steps.sequence[i]].push_back({first + static_cast<std::int64_t>(i), steps.sequence[i],
                                          steps.block[i], steps.block_start[i], steps.step[i],
                                          steps.context_length[i], steps.recorded[i] != 0});
    }
  }
  return found;
}

auto key_of(const TeacherRow& row) { return std::tuple(row.block_start, row.step); }

std::string name_of(const TraceReader& trace, std::int64_t sequence) {
  const std::string name = trace.sequence(sequence).name;
  return name.empty() ? fmt::format("{}", sequence) : fmt::format("{} ('{}')", sequence, name);
}

}  // namespace

TeacherPlace TeacherPair::place() const {
  TeacherPlace place;
  place.sequence_a = a.sequence;
  place.sequence_b = b.sequence;
  place.row_a = a.row;
  place.row_b = b.row;
  place.block = a.block;
  place.step = a.step;
  return place;
}

TeacherRows::TeacherRows(const TraceReader& a, const TraceReader& b) : a_(a), b_(b) {
  const SequenceMatches matches = match_sequences(a, b);
  const auto in_a = steps_of(a);
  const auto in_b = steps_of(b);
  const auto only = [&](const std::vector<std::int64_t>& sequences, const char* which) {
    if (sequences.empty()) return;
    notes_.push_back(fmt::format("{} only in {}: not compared",
                                 plural(static_cast<std::int64_t>(sequences.size()), "sequence"),
                                 which));
  };
  only(matches.only_a, "A");
  only(matches.only_b, "B");
  fed_drafts_ = a.has(Field::draft_token) && b.has(Field::draft_token) &&
                is_of_target(a.info().meta) && is_of_target(b.info().meta);
  prompt_lengths_.assign(static_cast<std::size_t>(a.info().num_sequences), 0);
  std::int64_t only_a = 0;
  std::int64_t only_b = 0;
  for (const SequenceMatch& match : matches.pairs) {
    if (!match.same_prompt) {
      if (!prompts_) {
        prompts_.emplace();
        prompts_->place.sequence_a = match.a;
        prompts_->place.sequence_b = match.b;
        prompts_->what = fmt::format("the prompts of sequence {} differ", name_of(a, match.a));
      }
      continue;
    }
    ++sequences_;
    prompt_lengths_[static_cast<std::size_t>(match.a)] = std::ssize(a.sequence(match.a).prompt);
    static const std::vector<TeacherRow> kNone;
    const auto rows = [](const auto& all, std::int64_t sequence) -> const std::vector<TeacherRow>& {
      const auto at = all.find(sequence);
      return at == all.end() ? kNone : at->second;
    };
    const std::vector<TeacherRow>& here = rows(in_a, match.a);
    const std::vector<TeacherRow>& there = rows(in_b, match.b);
    std::size_t i = 0;
    std::size_t j = 0;
    while (i < here.size() && j < there.size()) {
      if (key_of(here[i]) == key_of(there[j])) {
        pairs_.push_back({here[i++], there[j++]});
      } else if (key_of(here[i]) < key_of(there[j])) {
        ++only_a, ++i;
      } else {
        ++only_b, ++j;
      }
    }
    only_a += static_cast<std::int64_t>(here.size() - i);
    only_b += static_cast<std::int64_t>(there.size() - j);
  }
  if (only_a > 0)
    notes_.push_back(fmt::format("{} only in A: not compared", plural(only_a, "step")));
  if (only_b > 0)
    notes_.push_back(fmt::format("{} only in B: not compared", plural(only_b, "step")));
  std::ranges::sort(pairs_, {}, [](const TeacherPair& pair) { return pair.a.row; });
  if (!prompts_ && pairs_.empty()) {
    throw UsageError(fmt::format(
        "{}: expected steps of the same prompts as {}, found {} and {} in common. HINT: blockscope "
        "capture ... --replay {} makes a trace of another implementation at the same tokens",
        b.info().path, a.info().path, plural(sequences_, "sequence"), "no step", a.info().path));
  }
}

std::optional<TeacherInputs> TeacherRows::inputs(const TeacherPair& pair) const {
  std::string what;
  if (a_.info().meta.continuous()) {
    const float here = a_.read_floats(Field::step_timestep, pair.a.row, 1).front();
    const float there = b_.read_floats(Field::step_timestep, pair.b.row, 1).front();
    if (here != there) what = fmt::format("timestep: {} in A, {} in B", here, there);
  } else {
    what = tokens_differ(pair);
    if (what.empty() && fed_drafts_) what = drafts_differ(pair);
  }
  if (what.empty() && pair.a.context_length != pair.b.context_length) {
    what = fmt::format("keys before the block: {} in A, {} in B", pair.a.context_length,
                       pair.b.context_length);
  }
  if (what.empty()) return std::nullopt;
  return TeacherInputs{pair.place(), std::move(what)};
}

/// Tokens of the sequence before the row, up to the block's end if later ones are not seen.
std::string TeacherRows::tokens_differ(const TeacherPair& pair) const {
  const Frame here = a_.frame_before(pair.a.row);
  const Frame there = b_.frame_before(pair.b.row);
  const TraceMeta& meta = a_.info().meta;
  const std::int64_t prompt = prompt_lengths_[static_cast<std::size_t>(pair.a.sequence)];
  const std::int64_t length_a = std::ssize(here.generated_tokens);
  const std::int64_t length_b = std::ssize(there.generated_tokens);
  std::int64_t end = std::min(length_a, length_b);
  if (!meta.bidirectional) {
    end = std::clamp<std::int64_t>(pair.a.block_start + meta.block_length - prompt, 0, end);
  } else if (length_a != length_b) {
    return fmt::format("length of the canvas: {} positions in A, {} in B", length_a, length_b);
  }
  for (std::int64_t i = 0; i < end; ++i) {
    const auto at = static_cast<std::size_t>(i);
    const bool mask_a = here.generated_tokens[at] == here.mask_token_id;
    const bool mask_b = there.generated_tokens[at] == there.mask_token_id;
    if (mask_a && mask_b) continue;
    if (mask_a == mask_b && here.generated_tokens[at] == there.generated_tokens[at]) continue;
    const auto token = [&](const Frame& frame, bool mask) {
      return mask ? std::string("a mask") : std::to_string(frame.generated_tokens[at]);
    };
    return fmt::format("token at position {} (the answer's {}): {} in A, {} in B", prompt + i, i,
                       token(here, mask_a), token(there, mask_b));
  }
  return {};
}

std::string TeacherRows::drafts_differ(const TeacherPair& pair) const {
  const std::vector<std::int32_t> here = a_.read_ints(Field::draft_token, pair.a.row, 1);
  const std::vector<std::int32_t> there = b_.read_ints(Field::draft_token, pair.b.row, 1);
  for (std::size_t p = 1; p < std::min(here.size(), there.size()); ++p) {
    if (here[p] == there[p]) continue;
    return fmt::format("drafted token at block position {}: {} in A, {} in B", p, here[p],
                       there[p]);
  }
  return {};
}

}  // namespace blockscope
