// See trace_check.h: checks one row against the earlier rows of its sequence.
#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "decode_record/frames/decode_record.h"
#include "decode_record/read/trace_check_columns.h"

namespace blockscope {
namespace {

// A probability, a little above 1 because sums are rounded; other confidences are smaller.
constexpr float kLargestConfidence = 1.01F;
constexpr std::int64_t kLargestInt64 = std::numeric_limits<std::int64_t>::max();

}  // namespace

void TraceCheck::check_row(const Columns& columns, std::size_t i, Elements& elements) {
  const std::int64_t row = columns.first + static_cast<std::int64_t>(i);
  check(Field::step_sequence, "row", row, columns.sequence[i], 0,
        static_cast<std::int64_t>(sequences_.size()) - 1);
  Sequence& sequence = sequences_[static_cast<std::size_t>(columns.sequence[i])];
  check(Field::row, "row", row, columns.number[i], row, row);
  check(Field::step_previous, "row", row, columns.previous[i], sequence.last_row,
        sequence.last_row);
  check_step(columns, i, sequence);
  check_keyframe(columns, i, sequence, elements);
  if (!columns.revoke_end.empty()) check_revocations(columns, i, sequence, elements);
  if (!columns.cache_end[0].empty()) check_cache(columns, i, sequence, elements);
  check_delta(columns, i, sequence, elements);
  if (!columns.prefix_end.empty()) check_prefix(columns, i, sequence, elements);
  sequence.last_row = row;
  ++sequence.rows;
}

void TraceCheck::check_step(const Columns& columns, std::size_t i, Sequence& sequence) const {
  const std::int64_t row = columns.first + static_cast<std::int64_t>(i);
  const std::int64_t block_length = trace_->meta().block_length;
  const bool continuous = trace_->meta().continuous();
  const std::int64_t positions =
      continuous ? kLargestLength : sequence.prompt_length + sequence.length;
  const auto in = [&](Field field, std::int64_t value, std::int64_t least, std::int64_t most) {
    check(field, "row", row, value, least, most);
  };
  in(Field::step_pass, columns.pass[i], 0, kLargestInt64);
  in(Field::step_kind, columns.kind[i], 0, static_cast<std::int64_t>(PassKind::commit));
  in(Field::step_block, columns.block[i], -1, positions);
  in(Field::step_block_start, columns.block_start[i], 0, positions);
  const bool denoises = is_step(static_cast<PassKind>(columns.kind[i]), continuous);
  const std::int64_t before = columns.block[i] == sequence.block ? sequence.step : 0;
  const std::int64_t step = denoises ? before + 1 : 0;
  in(Field::step_step, columns.step[i], step, step);
  in(Field::step_context_length, columns.context_length[i], 0, positions);
  in(Field::step_changed, columns.changed[i], 0, block_length);
  if (!columns.rows_read.empty()) {
    // Every pass may decide the same positions as [MASK] again.
    in(Field::step_since_read, columns.since_read[i], 0,
       block_length * std::max<std::int64_t>(before, 1));
    in(Field::step_rows_read, columns.rows_read[i], 0, block_length);
  }
  in(Field::step_masks_left, columns.masks_left[i], 0, block_length);
  in(Field::step_recorded, columns.recorded[i], 0, 1);
  in(Field::step_pass_time_ns, columns.pass_time_ns[i], -1, kLargestInt64);
  if (!denoises) return;
  sequence.block = columns.block[i];
  sequence.step = step;
}

/// Keyframes are numbered in the order of the rows that they precede.
void TraceCheck::check_keyframe(const Columns& columns, std::size_t i, Sequence& sequence,
                                Elements& elements) {
  const std::int64_t row = columns.first + static_cast<std::int64_t>(i);
  const std::int64_t index = columns.keyframe[i];
  const auto at = static_cast<std::size_t>(keyframes_ - columns.first_keyframe);
  const bool is_new = index == keyframes_ && at < columns.keyframe_row.size();
  if (!is_new) {
    if (index < 0 || index != sequence.keyframe) {
      refuse(Field::row_keyframe, fmt::format("row {}", row),
             sequence.keyframe < 0 ? fmt::format("{}", keyframes_)
                                   : fmt::format("{} or {}", sequence.keyframe, keyframes_),
             std::to_string(index));
    }
    return;
  }
  check(Field::keyframe_row, "keyframe", index, columns.keyframe_row[at], row, row);
  const std::int64_t begin = Columns::begin(columns.keyframe_end, at, columns.keyframe_start);
  const std::int64_t end = begin + sequence.length;
  check(Field::keyframe_end, "keyframe", index, columns.keyframe_end[at], end, end);
  check(Field::keyframe_end, "keyframe", index, end, 0, trace_->extent(Field::keyframe_token));
  const auto tokens = elements.keyframe_token.range(begin, end);
  check_tokens(Field::keyframe_token, row, tokens);
  const auto confidence = elements.keyframe_confidence.range(begin, end);
  check_confidence(Field::keyframe_confidence, row, confidence);
  check_decided(Field::keyframe_step, row, elements.keyframe_step.range(begin, end), tokens,
                confidence, sequence.decided);
  sequence.keyframe = index;
  ++keyframes_;
}

void TraceCheck::check_delta(const Columns& columns, std::size_t i, Sequence& sequence,
                             Elements& elements) {
  const std::int64_t row = columns.first + static_cast<std::int64_t>(i);
  std::int64_t begin = Columns::begin(columns.delta_end, i, columns.delta_start);
  std::int64_t end = columns.delta_end[i];
  // No position changes twice in a row.
  check(Field::delta_end, "row", row, end, begin,
        std::min(trace_->extent(Field::delta_position), begin + sequence.length));
  const auto positions = elements.position.range(begin, end);
  check_all(Field::delta_position, row, positions, 0, sequence.length - 1);
  check_distinct(Field::delta_position, row, positions);
  const std::int64_t next = sequence.decided + 1;
  const auto decide = [&](Field token_field, std::span<const std::int32_t> tokens, Field step_field,
                          std::span<const std::int32_t> steps, std::span<const float> confidence) {
    check_tokens(token_field, row, tokens);
    check_decided(step_field, row, steps, tokens, confidence, next);
    for (const std::int32_t step : steps)
      sequence.decided = std::max<std::int64_t>(sequence.decided, step);
  };
  const auto confidence = elements.confidence.range(begin, end);
  check_confidence(Field::delta_confidence, row, confidence);
  decide(Field::delta_token, elements.token.range(begin, end), Field::delta_step,
         elements.step.range(begin, end), confidence);

  begin = Columns::begin(columns.insert_end, i, columns.insert_start);
  end = columns.insert_end[i];
  check(Field::insert_end, "row", row, end, begin,
        std::min(trace_->extent(Field::insert_position), begin + kLargestLength - sequence.length));
  check_all(Field::insert_position, row, elements.insert_position.range(begin, end), 0,
            sequence.length);
  const auto inserted = elements.insert_confidence.range(begin, end);
  check_confidence(Field::insert_confidence, row, inserted);
  decide(Field::insert_token, elements.insert_token.range(begin, end), Field::insert_step,
         elements.insert_step.range(begin, end), inserted);
  sequence.length += end - begin;
  positions_ = std::max(positions_, sequence.prompt_length + sequence.length);

  begin = Columns::begin(columns.delete_end, i, columns.delete_start);
  end = columns.delete_end[i];
  check(Field::delete_end, "row", row, end, begin,
        std::min(trace_->extent(Field::delete_position), begin + sequence.length));
  const auto deleted = elements.delete_position.range(begin, end);
  check_all(Field::delete_position, row, deleted, 0, sequence.length - 1);
  check_distinct(Field::delete_position, row, deleted);
  sequence.length -= end - begin;
}

void TraceCheck::check_prefix(const Columns& columns, std::size_t i, const Sequence& sequence,
                              Elements& elements) const {
  const std::int64_t row = columns.first + static_cast<std::int64_t>(i);
  const std::int64_t begin = Columns::begin(columns.prefix_end, i, columns.prefix_start);
  const std::int64_t end = columns.prefix_end[i];
  const std::int64_t positions = sequence.prompt_length + sequence.length;
  check(Field::prefix_end, "row", row, end, begin,
        std::min(trace_->extent(Field::prefix_position), begin + positions));
  check_all(Field::prefix_sequence, row, elements.prefix_sequence.range(begin, end),
            columns.sequence[i], columns.sequence[i]);
  check_all(Field::prefix_position, row, elements.prefix_position.range(begin, end), 0,
            positions - 1);
}

/// A token must be in the vocabulary, or mean "not decided".
void TraceCheck::check_tokens(Field field, std::int64_t row,
                              std::span<const std::int32_t> tokens) const {
  const TraceMeta& meta = trace_->meta();
  for (const std::int32_t token : tokens) {
    if ((token >= 0 && token < meta.vocab_size) || token == meta.mask_token_id) continue;
    const bool prompt = field == Field::sequence_prompt_token;
    refuse(
        field, fmt::format("{} {}", prompt ? "elements from" : "row", row),
        fmt::format("a token in 0 to {}, or the mask {}", meta.vocab_size - 1, meta.mask_token_id),
        std::to_string(token));
  }
}

/// A decided token must have a step; only a mask or noise may have none.
void TraceCheck::check_decided(Field field, std::int64_t row, std::span<const std::int32_t> steps,
                               std::span<const std::int32_t> tokens,
                               std::span<const float> confidence, std::int64_t most) const {
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const StepLimits limits = step_limits(trace_->meta(), tokens[i], confidence[i], most);
    check(field, "row", row, steps[i], limits.least, std::max(limits.least, limits.most));
  }
}

void TraceCheck::check_confidence(Field field, std::int64_t row,
                                  std::span<const float> values) const {
  for (const float value : values) {
    if (value > kLargestConfidence) {
      refuse(field, fmt::format("row {}", row), "a confidence up to 1, -inf or NaN",
             fmt::format("{}", value));
    }
  }
}

void TraceCheck::check_all(Field field, std::int64_t row, std::span<const std::int32_t> values,
                           std::int64_t least, std::int64_t most) const {
  for (const std::int32_t value : values) check(field, "row", row, value, least, most);
}

void TraceCheck::check_distinct(Field field, std::int64_t row,
                                std::span<const std::int32_t> values) {
  if (values.size() < 2) return;
  ++looks_;
  for (const std::int32_t value : values) {
    const auto at = static_cast<std::size_t>(value);
    if (seen_.size() <= at) seen_.resize(at + 1, 0);
    if (seen_[at] == looks_) {
      refuse(field, fmt::format("row {}", row), "distinct positions",
             fmt::format("{} twice", value));
    }
    seen_[at] = looks_;
  }
}
}  // namespace blockscope
