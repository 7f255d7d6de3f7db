// See raw_trace.h.
#include "decode_record/raw_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "decode_record/trace_header.h"

namespace blockscope {

namespace {

constexpr std::int64_t kScanRows = 65536;

h5::File open_any(const std::string& path) {
  namespace fs = std::filesystem;
  const std::string partial = path + ".partial";
  const bool use_partial = !fs::exists(path) && fs::exists(partial);
  const std::string& chosen = use_partial ? partial : path;
  if (!fs::exists(chosen)) {
    throw TraceError(fmt::format("{}: no such file. HINT: check the path", path));
  }
  // A writer may hold a .partial open, or a kill may have left its mark: SWMR reading takes both.
  const bool unfinished = chosen.ends_with(".partial");
  return h5::open_file(chosen, unfinished ? h5::OpenMode::swmr_read : h5::OpenMode::read);
}

}  // namespace

RawTrace::RawTrace(const std::string& path) : file_(open_any(path)), meta_(read_header(file_)) {
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
    datasets_[index(spec.field)] = std::move(dataset);
  }
  complete_ = cell(Field::run_complete) != 0;
  find_lengths();
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
  set_length(axis, end, rows == 0 ? 0 : read_integers(end, rows - 1, 1).front());
}

void RawTrace::find_lengths() {
  set_length(Axis::row, Field::step_committed, cell(Field::step_committed));
  set_length(Axis::sequence, Field::sequence_committed, cell(Field::sequence_committed));
  const std::int64_t rows = length(Axis::row);
  const std::int64_t sequences = length(Axis::sequence);
  set_length(Axis::keyframe, Field::row_keyframe, largest(Field::row_keyframe, rows) + 1);
  set_from_end(Axis::delta, Field::delta_end, rows);
  set_from_end(Axis::insertion, Field::insert_end, rows);
  set_from_end(Axis::deletion, Field::delete_end, rows);
  set_from_end(Axis::keyframe_element, Field::keyframe_end, length(Axis::keyframe));
  if (has(Field::prefix_end)) set_from_end(Axis::prefix_element, Field::prefix_end, rows);
  std::int64_t prompt = 0;
  if (sequences > 0) {
    prompt = read_integers(Field::sequence_prompt_start, sequences - 1, 1).front() +
             read_integers(Field::sequence_prompt_length, sequences - 1, 1).front();
  }
  set_length(Axis::prompt_element, Field::sequence_prompt_start, prompt);
  // Texts of sequences that were cut may lie beyond the committed ones; all bytes are kept.
  set_length(Axis::text_byte, Field::sequence_bytes,
             static_cast<std::int64_t>(dataset(Field::sequence_bytes).extent[0]));
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
  std::vector<std::byte> bytes(row_bytes(field) * static_cast<std::size_t>(count));
  if (!bytes.empty()) h5::read_words(source, start, box, bytes.data());
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
  if (!bytes.empty()) h5::read_words(source, start, box, bytes.data());
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
