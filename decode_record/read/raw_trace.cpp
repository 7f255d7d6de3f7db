// See raw_trace.h.
#include "decode_record/read/raw_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace blockscope {

namespace {

constexpr std::int64_t kRowsAtOnce = 65536;

}  // namespace

RawTrace::RawTrace(const std::string& path, Opening opening, Writer writer)
    : stored_(path, writer), complete_(stored_.committed().complete) {
  if (opening == Opening::salvage) {
    whole_ = find_whole_rows(stored_);
    complete_ = complete_ && whole_.all();
  } else {
    whole_.rows = whole_.committed_rows = stored_.committed().rows;
    whole_.sequences = whole_.committed_sequences = stored_.committed().sequences;
  }
  if (opening != Opening::known) {
    TraceCheck check(stored_, whole_.cut);
    check.pieces();
    check.sequences(whole_.sequences);
    check.rows(whole_.rows);
    stored_.set_positions(check.positions());
  }
  if (opening == Opening::checked) stored_.check_not_cut(whole_.rows);
  find_lengths();
}

std::int64_t RawTrace::largest(Field field, std::int64_t count) const {
  std::int64_t result = -1;
  for (std::int64_t at = 0; at < count; at += kRowsAtOnce) {
    const auto part = read_integers(field, at, std::min(kRowsAtOnce, count - at));
    result = std::max(result, *std::ranges::max_element(part));
  }
  return result;
}

void RawTrace::set_length(Axis axis, Field by, std::int64_t value) {
  std::int64_t limit = -1;
  for (const DatasetSpec& spec : kDatasets) {
    if (!has(spec.field) || !spec.extendible() || spec.axes[0] != axis) continue;
    const auto extent = static_cast<std::int64_t>(dataset(spec.field).extent[0]);
    limit = limit < 0 ? extent : std::min(limit, extent);
  }
  if (value < 0 || value > limit) {
    throw CorruptTrace(fmt::format("{}:{}: expected 0 to {}, got {}. HINT: the trace is damaged",
                                   path(), spec_of(by).path, limit, value));
  }
  lengths_[static_cast<std::size_t>(axis)] = value;
}

void RawTrace::set_from_end(Axis axis, Field end, std::int64_t rows) {
  set_length(axis, end, rows == 0 ? 0 : read_integers(end, rows - 1, 1).back());
}

void RawTrace::find_lengths() {
  set_length(Axis::row, Field::step_committed, whole_.rows);
  set_length(Axis::sequence, Field::sequence_committed, whole_.sequences);
  const std::int64_t rows = length(Axis::row);
  const std::int64_t sequences = length(Axis::sequence);
  set_length(Axis::keyframe, Field::row_keyframe, largest(Field::row_keyframe, rows) + 1);
  for (const RangeSpec& range : kRowRanges) {
    if (has(range.end)) set_from_end(range.axis, range.end, rows);
  }
  set_from_end(Axis::keyframe_element, Field::keyframe_end, length(Axis::keyframe));
  std::int64_t prompt = 0;
  if (sequences > 0) {
    prompt = read_integers(Field::sequence_prompt_start, sequences - 1, 1).front() +
             read_integers(Field::sequence_prompt_length, sequences - 1, 1).front();
  }
  set_length(Axis::prompt_element, Field::sequence_prompt_start, prompt);
  set_length(Axis::text_byte, Field::sequence_bytes, text_bytes());
}

/// A finished trace keeps all its bytes, even texts that nothing points to since a resume. In an
/// unfinished trace, reserved room follows the bytes.
std::int64_t RawTrace::text_bytes() const {
  const h5::Dataset& bytes = dataset(Field::sequence_bytes);
  if (complete_) {
    check_read_size(bytes, bytes.extent[0], stored_.file_bytes());
    return static_cast<std::int64_t>(bytes.extent[0]);
  }
  const std::int64_t sequences = length(Axis::sequence);
  const std::vector<std::uint8_t>& reasons = finish_reasons();
  std::int64_t end = 0;
  for (const auto& [start_field, length_field] : kSequenceTexts) {
    const bool text = start_field == Field::sequence_text_start;
    const auto starts = read_integers(start_field, 0, sequences);
    const auto lengths = read_integers(length_field, 0, sequences);
    for (std::size_t i = 0; i < starts.size(); ++i) {
      const bool none = text && (reasons[i] == 0 || (i < whole_.cut.size() && whole_.cut[i]));
      if (!none) end = std::max(end, starts[i] + lengths[i]);
    }
  }
  return end;
}

std::vector<hsize_t> RawTrace::shape(Field field) const {
  std::vector<hsize_t> result = dataset(field).extent;
  const DatasetSpec& spec = spec_of(field);
  if (spec.extendible()) result[0] = static_cast<hsize_t>(length(spec.axes[0]));
  return result;
}

std::size_t RawTrace::row_bytes(Field field) const {
  std::size_t bytes = h5::size_of(dataset(field).element);
  for (std::size_t i = 1; i < dataset(field).extent.size(); ++i) bytes *= dataset(field).extent[i];
  return bytes;
}

std::vector<std::byte> RawTrace::read(Field field, std::int64_t first, std::int64_t count) const {
  return stored_.read(field, first, count, StoredTrace::kAllLayersOfRow);
}

std::vector<std::byte> RawTrace::read_layer(Field field, std::int64_t first, std::int64_t count,
                                            std::int64_t layer) const {
  return stored_.read(field, first, count, layer);
}

std::vector<std::int64_t> RawTrace::read_integers(Field field, std::int64_t first,
                                                  std::int64_t count) const {
  const auto bytes = read(field, first, count);
  const std::size_t size = h5::size_of(dataset(field).element);
  std::vector<std::int64_t> result(bytes.size() / size);
  for (std::size_t i = 0; i < result.size(); ++i) {
    std::int32_t narrow = 0;
    switch (size) {
      case 1:
        result[i] = static_cast<std::int64_t>(bytes[i]);
        break;
      case 4:
        std::memcpy(&narrow, &bytes[4 * i], 4);
        result[i] = narrow;
        break;
      default:
        std::memcpy(&result[i], &bytes[8 * i], 8);
    }
  }
  return result;
}

}  // namespace blockscope
