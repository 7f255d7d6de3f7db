// See trace_check.h. A slab of rows is read column by column; the elements that the rows own are
// read ahead in larger pieces.
#include "decode_record/trace_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "decode_record/decode_record.h"

namespace blockscope {
namespace {

constexpr std::int64_t kSlabRows = 8192;
constexpr std::size_t kSlabBytes = 4U << 20U;
constexpr std::int64_t kElementsAhead = 65536;
// A probability, with room for the rounding of a sum; other measures of sureness are smaller.
constexpr float kLargestConfidence = 1.01F;
constexpr std::int64_t kLargestInt64 = std::numeric_limits<std::int64_t>::max();

std::string interval(std::int64_t least, std::int64_t most) {
  if (most == kLargestInt64) return fmt::format("{} or more", least);
  return fmt::format("{} to {}", least, most);
}

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

/// A CSR column, read forwards and ahead, never beyond the committed elements.
template <typename Value>
class ElementColumn {
 public:
  ElementColumn(const StoredTrace& trace, Field field) : trace_(&trace), field_(field) {}
  void set_limit(std::int64_t limit) { limit_ = limit; }
  std::span<const Value> range(std::int64_t begin, std::int64_t end) {
    if (begin == end) return {};
    const auto buffered = static_cast<std::int64_t>(values_.size());
    if (begin < first_ || end > first_ + buffered) {
      first_ = begin;
      // What is asked for in any case: a damaged last end makes the limit too small.
      const std::int64_t ahead = std::max(end, std::min(limit_, begin + kElementsAhead));
      values_ = trace_->column<Value>(field_, begin, ahead - begin);
    }
    return std::span<const Value>(values_).subspan(static_cast<std::size_t>(begin - first_),
                                                   static_cast<std::size_t>(end - begin));
  }

 private:
  const StoredTrace* trace_;
  Field field_;
  std::int64_t limit_ = 0;
  std::int64_t first_ = 0;
  std::vector<Value> values_;
};

}  // namespace

struct TraceCheck::Columns {
  std::int64_t first = 0;
  std::size_t count = 0;
  std::vector<std::int64_t> number, sequence, pass, previous, kind, block, block_start, step,
      context_length, transferred, masks_left, recorded, pass_time_ns, delta_end, insert_end,
      delete_end, keyframe, prefix_end;
  std::vector<std::int64_t> keyframe_row, keyframe_end;  // from keyframe `first_keyframe` on
  std::int64_t first_keyframe = 0;
  std::int64_t keyframe_start = 0;  // where that one's elements begin
  // Where the elements of the slab's first row begin.
  std::int64_t delta_start = 0, insert_start = 0, delete_start = 0, prefix_start = 0;

  static std::int64_t begin(const std::vector<std::int64_t>& ends, std::size_t i,
                            std::int64_t start) {
    return i == 0 ? start : ends[i - 1];
  }
};

struct TraceCheck::Elements {
  explicit Elements(const StoredTrace& trace)
      : position(trace, Field::delta_position),
        token(trace, Field::delta_token),
        step(trace, Field::delta_step),
        insert_position(trace, Field::insert_position),
        insert_token(trace, Field::insert_token),
        insert_step(trace, Field::insert_step),
        delete_position(trace, Field::delete_position),
        keyframe_token(trace, Field::keyframe_token),
        keyframe_step(trace, Field::keyframe_step),
        prefix_sequence(trace, Field::prefix_sequence),
        prefix_position(trace, Field::prefix_position),
        confidence(trace, Field::delta_confidence),
        insert_confidence(trace, Field::insert_confidence),
        keyframe_confidence(trace, Field::keyframe_confidence) {}
  ElementColumn<std::int32_t> position, token, step, insert_position, insert_token, insert_step,
      delete_position, keyframe_token, keyframe_step, prefix_sequence, prefix_position;
  ElementColumn<float> confidence, insert_confidence, keyframe_confidence;
};

void TraceCheck::refuse(Field field, const std::string& where, const std::string& expected,
                        const std::string& got) const {
  throw CorruptTrace(fmt::format("{}:{}: {}: expected {}, got {}. HINT: the file is damaged.",
                                 trace_->path(), spec_of(field).path, where, expected, got));
}

void TraceCheck::check(Field field, const char* unit, std::int64_t at, std::int64_t value,
                       std::int64_t least, std::int64_t most) const {
  if (value >= least && value <= most) return;
  refuse(field, fmt::format("{} {}", unit, at), interval(least, most), std::to_string(value));
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
    refuse(Field::token_offset, "length", interval(1, kLargestLength), std::to_string(count));
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
      sequences_.push_back({.prompt_length = length[i], .length = gen_length[i]});
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
  const auto reason = column(Field::sequence_finish_reason, first, count);
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
  const std::int64_t end = column(end_field, row - 1, 1).at(0);
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
  const std::size_t valid_bytes =
      std::max<std::size_t>(row_bytes(spec_of(Field::step_valid), trace_->meta()), 1);
  const auto slab =
      static_cast<std::int64_t>(std::clamp<std::size_t>(kSlabBytes / valid_bytes, 1, kSlabRows));
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
    columns.transferred = read(Field::step_transferred);
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
  check_delta(columns, i, sequence, elements);
  if (!columns.prefix_end.empty()) check_prefix(columns, i, sequence, elements);
  sequence.last_row = row;
  ++sequence.rows;
}

void TraceCheck::check_step(const Columns& columns, std::size_t i, const Sequence& sequence) const {
  const std::int64_t row = columns.first + static_cast<std::int64_t>(i);
  const std::int64_t block_length = trace_->meta().block_length;
  const std::int64_t positions = sequence.prompt_length + sequence.length;
  const auto in = [&](Field field, std::int64_t value, std::int64_t least, std::int64_t most) {
    check(field, "row", row, value, least, most);
  };
  in(Field::step_pass, columns.pass[i], 0, kLargestInt64);
  in(Field::step_kind, columns.kind[i], 0, static_cast<std::int64_t>(PassKind::commit));
  in(Field::step_block, columns.block[i], -1, positions);
  in(Field::step_block_start, columns.block_start[i], 0, positions);
  in(Field::step_step, columns.step[i], 0, kLargestLength);
  in(Field::step_context_length, columns.context_length[i], 0, positions);
  in(Field::step_transferred, columns.transferred[i], 0, block_length);
  in(Field::step_masks_left, columns.masks_left[i], 0, block_length);
  in(Field::step_recorded, columns.recorded[i], 0, 1);
  in(Field::step_pass_time_ns, columns.pass_time_ns[i], -1, kLargestInt64);
}

/// Keyframes are numbered in the order of the rows they stand before.
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
  check_tokens(Field::keyframe_token, row, elements.keyframe_token.range(begin, end));
  check_all(Field::keyframe_step, row, elements.keyframe_step.range(begin, end), kUndecodedStep,
            kLargestLength);
  check_confidence(Field::keyframe_confidence, row, elements.keyframe_confidence.range(begin, end));
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
  check_tokens(Field::delta_token, row, elements.token.range(begin, end));
  check_all(Field::delta_step, row, elements.step.range(begin, end), kUndecodedStep,
            kLargestLength);
  check_confidence(Field::delta_confidence, row, elements.confidence.range(begin, end));

  begin = Columns::begin(columns.insert_end, i, columns.insert_start);
  end = columns.insert_end[i];
  check(Field::insert_end, "row", row, end, begin,
        std::min(trace_->extent(Field::insert_position), begin + kLargestLength - sequence.length));
  check_all(Field::insert_position, row, elements.insert_position.range(begin, end), 0,
            sequence.length);
  check_tokens(Field::insert_token, row, elements.insert_token.range(begin, end));
  check_all(Field::insert_step, row, elements.insert_step.range(begin, end), kUndecodedStep,
            kLargestLength);
  check_confidence(Field::insert_confidence, row, elements.insert_confidence.range(begin, end));
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

/// A token is one of the vocabulary, or what stands for "not decided".
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

std::optional<ValueBounds> bounds_of(Field field, const TraceMeta& meta, std::int64_t positions) {
  switch (field) {
    case Field::prediction_token:
      return ValueBounds{-1, meta.vocab_size - 1};
    case Field::attention_selected:
    case Field::set_topk:
    case Field::set_topk_token:
      return ValueBounds{-1, positions - 1};
    case Field::set_union_size:
      return ValueBounds{-1, positions};
    case Field::attention_reused:
      return ValueBounds{0, 1};
    default:
      return std::nullopt;
  }
}

void check_values(const h5::Dataset& dataset, const ValueBounds& bounds, std::int64_t first,
                  std::size_t rows, std::span<const std::byte> values) {
  const std::size_t size = h5::size_of(dataset.element);
  const std::size_t count = values.size() / size;
  for (std::size_t i = 0; i < count; ++i) {
    std::int32_t value = 0;
    if (size == 1) {
      value = std::to_integer<std::int32_t>(values[i]);
    } else {
      std::memcpy(&value, &values[4 * i], 4);
    }
    if (value >= bounds.least && value <= bounds.most) continue;
    const auto row = first + static_cast<std::int64_t>(i / (count / rows));
    throw CorruptTrace(fmt::format("{}: row {}: expected {}, got {}. HINT: the file is damaged.",
                                   dataset.name, row, interval(bounds.least, bounds.most), value));
  }
}

}  // namespace blockscope
