// See trace_check.h. A slab of rows is read column by column; the elements that the rows own are
// read ahead in larger pieces.
#include "decode_record/read/trace_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <span>

#include "decode_record/frames/decode_record.h"
#include "decode_record/read/trace_check_columns.h"
#include "decode_record/read/value_bounds.h"

namespace blockscope {
namespace {

constexpr std::int64_t kSlabRows = 8192;
constexpr std::size_t kSlabBytes = 4U << 20U;

std::vector<std::int64_t> widened(const std::vector<std::byte>& bytes, std::size_t size) {
  std::vector<std::int64_t> values(bytes.size() / size);
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (size == 1) {
      values[i] = std::to_integer<std::int64_t>(bytes[i]);
    } else if (size == 4) {
      std::int32_t word = 0;
      std::memcpy(&word, &bytes[4 * i], 4);
      values[i] = word;
    } else {
      std::memcpy(&values[i], &bytes[8 * i], 8);
    }
  }
  return values;
}
}  // namespace

void TraceCheck::refuse(Field field, const std::string& where, const std::string& expected,
                        const std::string& got) const {
  throw CorruptTrace(fmt::format("{}:{}: {}: expected {}, got {}. HINT: the file is damaged.",
                                 trace_->path(), spec_of(field).path, where, expected, got));
}

void TraceCheck::check(Field field, const char* unit, std::int64_t at, std::int64_t value,
                       std::int64_t least, std::int64_t most) const {
  if (value >= least && value <= most) return;
  refuse(field, fmt::format("{} {}", unit, at), interval_text(least, most), std::to_string(value));
}

std::vector<std::int64_t> TraceCheck::column(Field field, std::int64_t first,
                                             std::int64_t count) const {
  return widened(trace_->read(field, first, count, StoredTrace::kAllLayersOfRow),
                 element_size(spec_of(field), trace_->meta()));
}

void TraceCheck::pieces() const {
  const std::int64_t bytes = trace_->extent(Field::token_bytes);
  const std::int64_t count = trace_->extent(Field::token_offset);
  if (count > kLargestLength) {
    refuse(Field::token_offset, "length", interval_text(1, kLargestLength), std::to_string(count));
  }
  std::int64_t before = 0;
  for (std::int64_t first = 0; first < count; first += kElementsAhead) {
    const auto offsets =
        column(Field::token_offset, first, std::min(kElementsAhead, count - first));
    for (std::size_t i = 0; i < offsets.size(); ++i) {
      check(Field::token_offset, "element", first + static_cast<std::int64_t>(i), offsets[i],
            before, bytes);
      before = offsets[i];
    }
  }
}

void TraceCheck::sequences(std::int64_t count) {
  while (std::cmp_less(sequences_.size(), count)) {
    const auto first = static_cast<std::int64_t>(sequences_.size());
    const std::int64_t part = std::min(kSlabRows, count - first);
    const auto gen_length = column(Field::sequence_gen_length, first, part);
    const auto start = column(Field::sequence_prompt_start, first, part);
    const auto length = column(Field::sequence_prompt_length, first, part);
    const std::int64_t elements = trace_->extent(Field::sequence_prompt_token);
    std::int64_t least = elements;
    std::int64_t end = 0;
    for (std::size_t i = 0; i < start.size(); ++i) {
      const std::int64_t at = first + static_cast<std::int64_t>(i);
      check(Field::sequence_gen_length, "sequence", at, gen_length[i], 0, kLargestLength);
      check(Field::sequence_prompt_start, "sequence", at, start[i], 0, elements);
      check(Field::sequence_prompt_length, "sequence", at, length[i], 0,
            std::min(kLargestLength, elements - start[i]));
      least = std::min(least, start[i]);
      end = std::max(end, start[i] + length[i]);
      positions_ = std::max(positions_, length[i] + gen_length[i]);
    }
    check_texts(first, part);
    check_prompts(least, end);
    for (std::size_t i = 0; i < start.size(); ++i) {
      sequences_.push_back({.prompt_length = length[i], .length = gen_length[i], .tokens = {}});
    }
  }
}

void TraceCheck::check_prompts(std::int64_t first, std::int64_t end) const {
  for (std::int64_t at = first; at < end; at += kElementsAhead) {
    check_tokens(Field::sequence_prompt_token, at,
                 trace_->column<std::int32_t>(Field::sequence_prompt_token, at,
                                              std::min(kElementsAhead, end - at)));
  }
}

void TraceCheck::check_texts(std::int64_t first, std::int64_t count) const {
  const auto reason =
      std::span(trace_->committed().finish_reasons)
          .subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count));
  const auto aborted = column(Field::sequence_aborted, first, count);
  for (std::size_t i = 0; i < reason.size(); ++i) {
    const std::int64_t at = first + static_cast<std::int64_t>(i);
    check(Field::sequence_finish_reason, "sequence", at, reason[i], 0,
          static_cast<std::int64_t>(FinishReason::interrupted));
    check(Field::sequence_aborted, "sequence", at, aborted[i], 0, 1);
  }
  constexpr std::pair<Field, Field> kTexts[] = {
      {Field::sequence_name_start, Field::sequence_name_length},
      {Field::sequence_answer_start, Field::sequence_answer_length},
      {Field::sequence_metric_start, Field::sequence_metric_length},
      {Field::sequence_text_start, Field::sequence_text_length}};
  const std::int64_t bytes = trace_->extent(Field::sequence_bytes);
  for (const auto& [start_field, length_field] : kTexts) {
    const auto start = column(start_field, first, count);
    const auto length = column(length_field, first, count);
    for (std::size_t i = 0; i < start.size(); ++i) {
      const std::int64_t at = first + static_cast<std::int64_t>(i);
      const bool cut = std::cmp_less(at, cut_.size()) && cut_[static_cast<std::size_t>(at)];
      const bool no_text = cut || static_cast<FinishReason>(reason[i]) == FinishReason::unfinished;
      if (start_field == Field::sequence_text_start && no_text) continue;
      check(start_field, "sequence", at, start[i], 0, bytes);
      check(length_field, "sequence", at, length[i], 0, bytes - start[i]);
    }
  }
}

/// Where the elements of the rows before `row` end.
std::int64_t TraceCheck::end_of(Field end_field, Field elements, std::int64_t row) const {
  if (row == 0) return 0;
  const std::int64_t end = column(end_field, row - 1, 1).back();
  check(end_field, "row", row - 1, end, 0, trace_->extent(elements));
  return end;
}

void TraceCheck::rows(std::int64_t count) {
  if (rows_ >= count) return;
  const bool prefix = trace_->has(Field::prefix_end);
  Elements elements(*trace_);
  const auto limit = [&](Field end, Field of, auto&... columns) {
    const std::int64_t last = end_of(end, of, count);
    (columns.set_limit(last), ...);
  };
  limit(Field::delta_end, Field::delta_position, elements.position, elements.token, elements.step,
        elements.confidence);
  limit(Field::insert_end, Field::insert_position, elements.insert_position, elements.insert_token,
        elements.insert_step, elements.insert_confidence);
  limit(Field::delete_end, Field::delete_position, elements.delete_position);
  if (prefix) {
    limit(Field::prefix_end, Field::prefix_position, elements.prefix_sequence,
          elements.prefix_position);
  }
  const bool revokes = trace_->has(Field::revoke_end);
  if (revokes) {
    limit(Field::revoke_end, Field::revoke_position, elements.revoke_position,
          elements.revoke_token, elements.revoke_confidence);
  }
  const bool cache = trace_->has(Field::query_end);
  for (std::size_t k = 0; cache && k < kCacheFields.size(); ++k) {
    limit(kCacheFields[k].end, kCacheFields[k].start, elements.cache_start[k],
          elements.cache_stop[k]);
  }
  const std::size_t valid_bytes =
      std::max<std::size_t>(row_bytes(spec_of(Field::step_valid), trace_->meta()), 1);
  const std::size_t widest =
      cache ? std::max(valid_bytes, row_bytes(spec_of(Field::query_end), trace_->meta()))
            : valid_bytes;
  const auto slab =
      static_cast<std::int64_t>(std::clamp<std::size_t>(kSlabBytes / widest, 1, kSlabRows));
  while (rows_ < count) {
    Columns columns;
    columns.first = rows_;
    const std::int64_t part = std::min(slab, count - rows_);
    columns.count = static_cast<std::size_t>(part);
    const auto read = [&](Field field) { return column(field, columns.first, part); };
    columns.number = read(Field::row);
    columns.sequence = read(Field::step_sequence);
    columns.pass = read(Field::step_pass);
    columns.previous = read(Field::step_previous);
    columns.kind = read(Field::step_kind);
    columns.block = read(Field::step_block);
    columns.block_start = read(Field::step_block_start);
    columns.step = read(Field::step_step);
    columns.context_length = read(Field::step_context_length);
    columns.changed = read(Field::step_changed);
    columns.masks_left = read(Field::step_masks_left);
    columns.recorded = read(Field::step_recorded);
    columns.pass_time_ns = read(Field::step_pass_time_ns);
    columns.delta_end = read(Field::delta_end);
    columns.insert_end = read(Field::insert_end);
    columns.delete_end = read(Field::delete_end);
    columns.keyframe = read(Field::row_keyframe);
    columns.delta_start = end_of(Field::delta_end, Field::delta_position, rows_);
    columns.insert_start = end_of(Field::insert_end, Field::insert_position, rows_);
    columns.delete_start = end_of(Field::delete_end, Field::delete_position, rows_);
    if (prefix) {
      columns.prefix_end = read(Field::prefix_end);
      columns.prefix_start = end_of(Field::prefix_end, Field::prefix_position, rows_);
    }
    if (revokes) {
      columns.revoke_end = read(Field::revoke_end);
      columns.revoke_start = end_of(Field::revoke_end, Field::revoke_position, rows_);
    }
    for (std::size_t k = 0; cache && k < kCacheFields.size(); ++k) {
      columns.cache_end[k] = read(kCacheFields[k].end);
      columns.cache_start[k] = end_of(kCacheFields[k].end, kCacheFields[k].start, rows_);
    }
    const auto valid = trace_->read(Field::step_valid, columns.first, part, -1);
    const auto beyond = std::ranges::find_if(valid, [](std::byte b) { return b > std::byte{1}; });
    if (beyond != valid.end()) {
      const auto at = static_cast<std::size_t>(beyond - valid.begin()) / valid_bytes;
      check(Field::step_valid, "row", columns.first + static_cast<std::int64_t>(at),
            std::to_integer<std::int64_t>(*beyond), 0, 1);
    }
    // A row begins at most one keyframe.
    const std::int64_t known = trace_->extent(Field::keyframe_end);
    const std::int64_t more =
        std::clamp<std::int64_t>(*std::ranges::max_element(columns.keyframe) + 1 - keyframes_, 0,
                                 std::min(part, std::max<std::int64_t>(known - keyframes_, 0)));
    columns.first_keyframe = keyframes_;
    columns.keyframe_row = column(Field::keyframe_row, keyframes_, more);
    columns.keyframe_end = column(Field::keyframe_end, keyframes_, more);
    columns.keyframe_start = end_of(Field::keyframe_end, Field::keyframe_token, keyframes_);
    const std::int64_t keyframe_limit =
        more == 0 ? 0
                  : std::clamp<std::int64_t>(columns.keyframe_end.back(), 0,
                                             trace_->extent(Field::keyframe_token));
    elements.keyframe_token.set_limit(keyframe_limit);
    elements.keyframe_step.set_limit(keyframe_limit);
    elements.keyframe_confidence.set_limit(keyframe_limit);
    for (std::size_t i = 0; i < columns.count; ++i) check_row(columns, i, elements);
    rows_ += part;
  }
}
}  // namespace blockscope
