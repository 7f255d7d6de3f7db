// See raw_trace.h.
#include "decode_record/raw_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "decode_record/trace_header.h"
#include "decode_record/value_bounds.h"

namespace blockscope {

namespace {

constexpr std::int64_t kScanRows = 65536;

}  // namespace

RawTrace::RawTrace(const std::string& path, Opening opening, Writer writer)
    : file_(open_trace(existing_trace(path), writer)), meta_(read_header(file_)) {
  file_bytes_ = std::filesystem::file_size(file_.path);
  open_datasets();
  complete_ = cell(Field::run_complete) != 0;
  if (opening == Opening::known) {
    take_committed(cell(Field::step_committed), cell(Field::sequence_committed));
    find_lengths();
    return;
  }
  StoredTrace stored(file_.path, writer);
  if (opening == Opening::salvage) {
    whole_ = find_whole_rows(stored);
    complete_ = complete_ && whole_.all();
  } else {
    take_committed(stored.count(Field::step_committed, Field::step_sequence),
                   stored.count(Field::sequence_committed, Field::sequence_gen_length));
  }
  TraceCheck check(stored, whole_.cut);
  check.pieces();
  check.sequences(whole_.sequences);
  check.rows(whole_.rows);
  positions_ = check.positions();
  if (opening == Opening::checked) stored.check_not_cut(whole_.rows);
  find_lengths();
}

void RawTrace::take_committed(std::int64_t rows, std::int64_t sequences) {
  whole_.rows = whole_.committed_rows = rows;
  whole_.sequences = whole_.committed_sequences = sequences;
}

void RawTrace::open_datasets() {
  for (const DatasetSpec& spec : kDatasets) {
    if (!exists_in(spec, meta_)) continue;
    const std::string name(spec.path);
    h5::Dataset dataset = h5::open_dataset(file_, name, file_element(spec, meta_), spec.rank);
    // The pieces are not part of the meta: their two axes are as long as the file says.
    const bool pieces = spec.field == Field::token_offset || spec.field == Field::token_bytes;
    const std::vector<std::int64_t> expected =
        pieces ? std::vector<std::int64_t>{0} : shape_of(spec, meta_);
    const std::size_t first_fixed = spec.extendible() || pieces ? 1 : 0;
    for (std::size_t i = first_fixed; i < spec.rank; ++i) {
      if (dataset.extent[i] == static_cast<hsize_t>(expected[i])) continue;
      throw CorruptTrace(
          fmt::format("{}: axis {}: expected {} elements, got {}. HINT: the file is "
                      "damaged or was not written by Blockscope",
                      dataset.name, to_string(spec.axes[i]), expected[i], dataset.extent[i]));
    }
    check_row_size(dataset);
    datasets_[index(spec.field)] = std::move(dataset);
  }
}

std::int64_t RawTrace::cell(Field field) const {
  const auto bytes = read(field, 0, 1);
  std::int64_t value = 0;
  std::memcpy(&value, bytes.data(), std::min(bytes.size(), sizeof(value)));
  return value;
}

std::int64_t RawTrace::largest(Field field, std::int64_t count) const {
  std::int64_t result = -1;
  for (std::int64_t at = 0; at < count; at += kScanRows) {
    const auto part = read_integers(field, at, std::min(kScanRows, count - at));
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
                                   file_.path, spec_of(by).path, limit, value));
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

/// A finished trace keeps all its bytes, also those of texts that nothing points to since a resume.
/// An unfinished one has room reserved behind them.
std::int64_t RawTrace::text_bytes() const {
  const h5::Dataset& bytes = dataset(Field::sequence_bytes);
  if (complete_) {
    check_read_size(bytes, bytes.extent[0], file_bytes_);
    return static_cast<std::int64_t>(bytes.extent[0]);
  }
  const std::int64_t sequences = length(Axis::sequence);
  const auto reasons = read_integers(Field::sequence_finish_reason, 0, sequences);
  std::int64_t end = 0;
  constexpr std::pair<Field, Field> kTexts[] = {
      {Field::sequence_name_start, Field::sequence_name_length},
      {Field::sequence_answer_start, Field::sequence_answer_length},
      {Field::sequence_metric_start, Field::sequence_metric_length},
      {Field::sequence_text_start, Field::sequence_text_length}};
  for (const auto& [start_field, length_field] : kTexts) {
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
  const h5::Dataset& source = dataset(field);
  std::vector<hsize_t> start(source.extent.size(), 0);
  start[0] = static_cast<hsize_t>(first);
  std::vector<hsize_t> box = source.extent;
  box[0] = static_cast<hsize_t>(count);
  const std::size_t size = row_bytes(field) * static_cast<std::size_t>(count);
  check_read_size(source, size, file_bytes_);
  std::vector<std::byte> bytes(size);
  if (bytes.empty()) return bytes;
  h5::read_words(source, start, box, bytes.data());
  const auto bounds = positions_ < 0 ? std::nullopt : bounds_of(field, meta_, positions_);
  if (bounds) {
    check_values(source.name, h5::size_of(source.element), *bounds, first,
                 static_cast<std::size_t>(count), bytes);
  }
  return bytes;
}

std::vector<std::byte> RawTrace::read_layer(Field field, std::int64_t first, std::int64_t count,
                                            std::int64_t layer) const {
  const h5::Dataset& source = dataset(field);
  std::vector<hsize_t> start(source.extent.size(), 0);
  start[0] = static_cast<hsize_t>(first);
  start[1] = static_cast<hsize_t>(layer);
  std::vector<hsize_t> box = source.extent;
  box[0] = static_cast<hsize_t>(count);
  box[1] = 1;
  std::vector<std::byte> bytes(row_bytes(field) / source.extent[1] *
                               static_cast<std::size_t>(count));
  if (bytes.empty()) return bytes;
  h5::read_words(source, start, box, bytes.data());
  const auto bounds = positions_ < 0 ? std::nullopt : bounds_of(field, meta_, positions_);
  if (bounds) {
    check_values(source.name, h5::size_of(source.element), *bounds, first,
                 static_cast<std::size_t>(count), bytes);
  }
  return bytes;
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
