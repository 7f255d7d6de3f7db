// See trace_check.h. A slab of rows is read column by column. The rows' elements are read in
// advance in larger pieces.
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

/// Bytes of /steps/valid in a row.
std::size_t valid_bytes(const TraceMeta& meta) {
  return std::max<std::size_t>(row_bytes(spec_of(Field::step_valid), meta), 1);
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
      positions_ = trace_->meta().continuous() ? kLargestLength  // not known in advance
                                               : std::max(positions_, length[i] + gen_length[i]);
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
    if (!trace_->has(Field::sequence_prompt_region)) continue;
    const auto last = static_cast<std::int64_t>(trace_->meta().regions.size()) - 1;
    for (const std::uint8_t region : trace_->column<std::uint8_t>(
             Field::sequence_prompt_region, at, std::min(kElementsAhead, end - at))) {
      check(Field::sequence_prompt_region, "elements from", at, region, 0, last);
    }
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
  const std::int64_t bytes = trace_->extent(Field::sequence_bytes);
  for (const auto& [start_field, length_field] : kSequenceTexts) {
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

/// Number of rows that are read together.
std::int64_t TraceCheck::slab_rows() const {
  std::size_t widest = valid_bytes(trace_->meta());
  if (trace_->has(Field::query_end)) {
    widest = std::max(widest, row_bytes(spec_of(Field::query_end), trace_->meta()));
  }
  return static_cast<std::int64_t>(std::clamp<std::size_t>(kSlabBytes / widest, 1, kSlabRows));
}

/// Elements are read ahead up to the last one of `count` rows.
void TraceCheck::limit_elements(std::int64_t count, Elements& elements) const {
  const auto limit = [&](Field end, Field of, auto&... columns) {
    const std::int64_t last = end_of(end, of, count);
    (columns.set_limit(last), ...);
  };
  limit(Field::delta_end, Field::delta_position, elements.position, elements.token, elements.step,
        elements.confidence);
  limit(Field::insert_end, Field::insert_position, elements.insert_position, elements.insert_token,
        elements.insert_step, elements.insert_confidence);
  limit(Field::delete_end, Field::delete_position, elements.delete_position);
  if (trace_->has(Field::prefix_end)) {
    limit(Field::prefix_end, Field::prefix_position, elements.prefix_sequence,
          elements.prefix_position);
  }
  if (trace_->has(Field::revoke_end)) {
    limit(Field::revoke_end, Field::revoke_position, elements.revoke_position,
          elements.revoke_token, elements.revoke_confidence);
  }
  if (!trace_->has(Field::query_end)) return;
  for (std::size_t k = 0; k < kCacheFields.size(); ++k) {
    limit(kCacheFields[k].end, kCacheFields[k].start, elements.cache_start[k],
          elements.cache_stop[k]);
  }
}

/// The next `count` rows of /steps, and where their elements begin and end.
TraceCheck::Columns TraceCheck::read_slab(std::int64_t count) const {
  Columns columns;
  columns.first = rows_;
  columns.count = static_cast<std::size_t>(count);
  const auto read = [&](Field field) { return column(field, rows_, count); };
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
  if (trace_->meta().has_since_read) {
    columns.since_read = read(Field::step_since_read);
    columns.rows_read = read(Field::step_rows_read);
  }
  columns.masks_left = read(Field::step_masks_left);
  columns.recorded = read(Field::step_recorded);
  columns.pass_time_ns = read(Field::step_pass_time_ns);
  columns.keyframe = read(Field::row_keyframe);
  read_ends(count, columns);
  return columns;
}

void TraceCheck::read_ends(std::int64_t count, Columns& columns) const {
  const auto read = [&](Field end, Field of, auto& ends, auto& start) {
    ends = column(end, rows_, count);
    start = end_of(end, of, rows_);
  };
  read(Field::delta_end, Field::delta_position, columns.delta_end, columns.delta_start);
  read(Field::insert_end, Field::insert_position, columns.insert_end, columns.insert_start);
  read(Field::delete_end, Field::delete_position, columns.delete_end, columns.delete_start);
  if (trace_->has(Field::prefix_end)) {
    read(Field::prefix_end, Field::prefix_position, columns.prefix_end, columns.prefix_start);
  }
  if (trace_->has(Field::revoke_end)) {
    read(Field::revoke_end, Field::revoke_position, columns.revoke_end, columns.revoke_start);
  }
  if (!trace_->has(Field::query_end)) return;
  for (std::size_t k = 0; k < kCacheFields.size(); ++k) {
    read(kCacheFields[k].end, kCacheFields[k].start, columns.cache_end[k], columns.cache_start[k]);
  }
}

/// Checks /steps/valid of the next `count` rows: 0 or 1 for each position of the block.
void TraceCheck::check_valid(std::int64_t count) const {
  const auto valid = trace_->read(Field::step_valid, rows_, count, -1);
  const auto beyond = std::ranges::find_if(valid, [](std::byte b) { return b > std::byte{1}; });
  if (beyond == valid.end()) return;
  const auto at = static_cast<std::size_t>(beyond - valid.begin()) / valid_bytes(trace_->meta());
  check(Field::step_valid, "row", rows_ + static_cast<std::int64_t>(at),
        std::to_integer<std::int64_t>(*beyond), 0, 1);
}

/// The keyframes of `count` rows: at most one per row.
void TraceCheck::read_keyframes(std::int64_t count, Columns& columns, Elements& elements) const {
  const std::int64_t known = trace_->extent(Field::keyframe_end);
  const std::int64_t more =
      std::clamp<std::int64_t>(*std::ranges::max_element(columns.keyframe) + 1 - keyframes_, 0,
                               std::min(count, std::max<std::int64_t>(known - keyframes_, 0)));
  columns.first_keyframe = keyframes_;
  columns.keyframe_row = column(Field::keyframe_row, keyframes_, more);
  columns.keyframe_end = column(Field::keyframe_end, keyframes_, more);
  columns.keyframe_start = end_of(Field::keyframe_end, Field::keyframe_token, keyframes_);
  const std::int64_t limit = more == 0
                                 ? 0
                                 : std::clamp<std::int64_t>(columns.keyframe_end.back(), 0,
                                                            trace_->extent(Field::keyframe_token));
  elements.keyframe_token.set_limit(limit);
  elements.keyframe_step.set_limit(limit);
  elements.keyframe_confidence.set_limit(limit);
}

void TraceCheck::rows(std::int64_t count) {
  if (rows_ >= count) return;
  Elements elements(*trace_);
  limit_elements(count, elements);
  while (rows_ < count) {
    const std::int64_t part = std::min(slab_rows(), count - rows_);
    Columns columns = read_slab(part);
    check_valid(part);
    read_keyframes(part, columns, elements);
    for (std::size_t i = 0; i < columns.count; ++i) check_row(columns, i, elements);
    rows_ += part;
  }
}
}  // namespace blockscope
