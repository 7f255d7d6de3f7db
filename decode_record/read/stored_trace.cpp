#include "decode_record/read/stored_trace.h"

#include <fmt/format.h>

#include <algorithm>

#include "decode_record/read/value_bounds.h"
#include "decode_record/schema/trace_texts.h"

namespace blockscope {
namespace {

// Largest row of one dataset (8B model: 19 MB). A larger one comes from a damaged file.
constexpr std::size_t kLargestRow = std::size_t{1} << 32U;
constexpr std::size_t kLargestRead = std::size_t{1} << 36U;
// A read of this size is compared with the file's size; deflate saves at most a factor of 1,032.
constexpr std::size_t kLargeRead = std::size_t{1} << 26U;
constexpr std::size_t kLargestRatio = 1032;

[[noreturn]] void corrupt(const std::string& where, std::string_view what) {
  throw CorruptTrace(fmt::format("{}: {}. HINT: the file is damaged.", where, what));
}

}  // namespace

void check_row_size(const h5::Dataset& dataset) {
  std::size_t bytes = h5::size_of(dataset.element);
  for (std::size_t i = 1; i < dataset.extent.size(); ++i) {
    if (dataset.extent[i] > kLargestRow / bytes) corrupt(dataset.name, "a row is too large");
    bytes *= std::max<std::size_t>(dataset.extent[i], 1);
  }
}

void check_read_size(const h5::Dataset& dataset, std::uint64_t bytes, std::uint64_t file_bytes) {
  const std::uint64_t ratio = dataset.filtered ? kLargestRatio : 1;
  const bool absent = bytes > kLargeRead && dataset.parts.empty() && bytes / ratio > file_bytes;
  if (!absent && bytes <= kLargestRead) return;
  corrupt(dataset.name, fmt::format("expected values that fit the file's {} bytes, got {} bytes",
                                    file_bytes, bytes));
}

StoredTrace::StoredTrace(const std::string& path, Writer writer)
    : file_(open_trace(path, writer)), bytes_(file_), meta_(read_header(file_)) {
  file_.merged_of = merged_files(meta_);
  // All at once: the file must be a valid trace even in parts that a command does not read.
  for (const DatasetSpec& spec : kDatasets) {
    if (has(spec.field)) h5::check_inside(file_, stored_path(spec, meta_));
  }
  look();
}

/// A writer flushes first the contents of rows and sequences, then the number of sequences, the
/// number of rows, which sequences ended, and last that the run is complete. A reader that reads
/// these in the opposite order, and everything else afterwards, finds all that they count.
void StoredTrace::look() {
  expire();
  Committed now;
  now.complete = cell(Field::run_complete) == 1;
  now.finish_reasons =
      column<std::uint8_t>(Field::sequence_finish_reason, 0,
                           count(Field::sequence_committed, Field::sequence_finish_reason));
  expire();
  now.rows = count(Field::step_committed, Field::step_sequence);
  now.sequences = count(Field::sequence_committed, Field::sequence_gen_length);
  now.finish_reasons.resize(static_cast<std::size_t>(now.sequences));  // new ones have not ended
  expire();
  committed_ = std::move(now);
}

void StoredTrace::expire() {
  for (Slot& slot : slots_) slot.stale = true;
}

bool StoredTrace::has(Field field) const { return exists_in(spec_of(field), meta_); }

h5::Dataset& StoredTrace::dataset(Field field) const {
  Slot& slot = slots_.at(static_cast<std::size_t>(field));
  const DatasetSpec& spec = spec_of(field);
  if (!slot.dataset) {
    slot.dataset = open(field);
    slot.stale = true;  // HDF5 keeps metadata of a dataset that was opened and closed before
  }
  const bool may_grow = spec.extendible() && file_.mode == h5::OpenMode::swmr_read;
  if (slot.stale && may_grow) h5::refresh(*slot.dataset);
  slot.stale = false;
  return *slot.dataset;
}

h5::Dataset StoredTrace::open(Field field) const {
  const DatasetSpec& spec = spec_of(field);
  if (!has(field)) {
    throw UsageError(
        fmt::format("{}:{}: this trace has no such dataset (its level is {}). HINT: "
                    "capture again with a higher --record level.",
                    path(), spec.path, to_string(meta_.level)));
  }
  h5::Dataset opened =
      h5::open_dataset(file_, stored_path(spec, meta_), file_element(spec, meta_), spec.rank);
  // read_header() does not read the pieces.
  const bool free_length = spec.axes[0] == Axis::piece_boundary || spec.axes[0] == Axis::piece_byte;
  const std::vector<std::int64_t> shape =
      free_length ? std::vector<std::int64_t>(1) : shape_of(spec, meta_);
  for (std::size_t i = 0; i < shape.size(); ++i) {
    const bool any = i == 0 && (spec.extendible() || free_length);
    if (!any && std::cmp_not_equal(opened.extent[i], shape[i])) {
      corrupt(opened.name, fmt::format("axis {}: expected length {}, got {}",
                                       to_string(spec.axes[i]), shape[i], opened.extent[i]));
    }
  }
  if (!opened.parts.empty() && !is_virtual(spec)) corrupt(opened.name, "refers to other files");
  check_row_size(opened);
  return opened;
}

std::int64_t StoredTrace::extent(Field field) const {
  return static_cast<std::int64_t>(std::min<hsize_t>(dataset(field).extent[0], hsize_t{1} << 62U));
}

std::int64_t StoredTrace::cell(Field field) const {
  const h5::Dataset& target = dataset(field);
  const auto address = h5::contiguous_address(target);
  if (!address) corrupt(target.name, "has no value");
  const std::size_t bytes = h5::size_of(target.element);
  std::int64_t value = 0;  // of a u8, its lowest byte
  std::int64_t before = 0;
  do {  // until two reads agree: a writer may be changing it
    before = value;
    bytes_.read(*address, &value, bytes, target.name);
  } while (value != before);
  return value;
}

std::int64_t StoredTrace::count(Field committed, Field column) const {
  const std::int64_t value = cell(committed);
  const std::int64_t most = extent(column);
  if (value < 0 || value > most) {
    corrupt(dataset(committed).name, fmt::format("expected 0 to {}, got {}", most, value));
  }
  return value;
}

StoredTrace::Box StoredTrace::box(Field field, std::int64_t first, std::int64_t count,
                                  std::int64_t layer) const {
  const DatasetSpec& spec = spec_of(field);
  const h5::Dataset& target = dataset(field);
  const std::int64_t rows_there = extent(field);
  if (first < 0 || count < 0 || first > rows_there || count > rows_there - first) {
    corrupt(target.name, fmt::format("expected rows in [0, {}), got [{}, {} + {})", rows_there,
                                     first, first, count));
  }
  Box part;
  part.rank = spec.rank;
  std::ranges::copy(target.extent, part.lengths.begin());
  part.starts[0] = static_cast<hsize_t>(first);
  part.lengths[0] = static_cast<hsize_t>(count);
  if (layer >= 0) {
    const auto axis = std::find(spec.axes.begin() + 1, spec.axes.begin() + spec.rank, Axis::layer) -
                      spec.axes.begin();
    const auto i = static_cast<std::size_t>(axis);
    const hsize_t layers = i < spec.rank ? part.lengths[i] : 0;
    if (static_cast<hsize_t>(layer) >= layers) {
      throw UsageError(
          fmt::format("{}: expected a layer slot in [0, {}), got {}", target.name, layers, layer));
    }
    part.starts[i] = static_cast<hsize_t>(layer);
    part.lengths[i] = 1;
  }
  part.bytes = h5::size_of(target.element);
  for (const hsize_t length : part.shape()) part.bytes *= length;
  // Small reads skip the system call for the size of the file.
  if (part.bytes > kLargeRead) check_read_size(target, part.bytes, bytes_.size());
  return part;
}

std::vector<std::byte> StoredTrace::read(Field field, std::int64_t first, std::int64_t count,
                                         std::int64_t layer) const {
  const Box part = box(field, first, count, layer);
  std::vector<std::byte> values(part.bytes);
  if (part.bytes != 0) h5::read_words(dataset(field), part.start(), part.shape(), values.data());
  check_range(field, first, count, values);
  return values;
}

void StoredTrace::read_into(Field field, std::int64_t first, std::int64_t count, std::int64_t layer,
                            std::span<std::byte> out) const {
  const Box part = box(field, first, count, layer);
  if (out.size() != part.bytes) {
    throw UsageError(fmt::format("{}: expected a buffer of {} bytes, got {}", dataset(field).name,
                                 part.bytes, out.size()));
  }
  const h5::Dataset& target = dataset(field);
  const bool whole_chunk = std::ranges::equal(target.chunk, part.shape());
  const bool read = whole_chunk && h5::read_chunk(target, part.start(), out.data(), part.bytes);
  if (!read && part.bytes != 0) h5::read_words(target, part.start(), part.shape(), out.data());
  check_range(field, first, count, out);
}

void StoredTrace::check_range(Field field, std::int64_t first, std::int64_t count,
                              std::span<const std::byte> values) const {
  if (positions_ < 0 || values.empty()) return;
  if (const auto bounds = bounds_of(field, meta_, positions_)) {
    const h5::Dataset& source = dataset(field);
    check_values(source.name, h5::size_of(source.element), *bounds, first,
                 static_cast<std::size_t>(count), values);
  }
}

void StoredTrace::prefetch(Field field, std::int64_t row, std::int64_t layer) const {
  const Box part = box(field, row, 1, layer);
  const h5::Dataset& target = dataset(field);
  if (std::ranges::equal(target.chunk, part.shape())) h5::prefetch_chunk(target, part.start());
}

std::optional<LocatedValues> StoredTrace::locate(Field field, std::int64_t row,
                                                 std::int64_t layer) const {
  const Box part = box(field, row, 1, layer);
  const h5::Dataset& target = dataset(field);
  const auto found = h5::values_place(target, part.start(), part.shape());
  if (!found || found->place.bytes != part.bytes) return std::nullopt;
  return LocatedValues{found->descriptor,
                       found->place.offset,
                       part.bytes,
                       found->dataset,
                       h5::size_of(target.element),
                       row,
                       positions_ < 0 ? std::nullopt : bounds_of(field, meta_, positions_)};
}

std::int64_t StoredTrace::whole_rows(Field field, std::int64_t count, std::string* why) const {
  const DatasetSpec& spec = spec_of(field);
  const bool by_layer = spec.storage == Storage::row_layer || spec.storage == Storage::column_layer;
  const std::int64_t layers = by_layer ? axis_length(Axis::layer, meta_) : 1;
  const std::int64_t there = extent(field);
  if (count > there && why != nullptr) {
    *why = fmt::format("{}: expected {} rows, got {}", opened(field).name, count, there);
  }
  std::int64_t whole = std::min(count, there);
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    whole = std::min(whole, whole_rows_of_layer(field, layer, whole, why));
  }
  return whole;
}

/// Checks chunk after chunk; for one layer, if each chunk holds one layer.
std::int64_t StoredTrace::whole_rows_of_layer(Field field, std::int64_t layer, std::int64_t count,
                                              std::string* why) const {
  const h5::Dataset& target = dataset(field);
  if (target.chunk.empty()) return count;  // virtual: its parts are files of their own
  const auto step = static_cast<std::int64_t>(target.chunk[0]);
  std::uint64_t row_size = h5::size_of(target.element);
  for (std::size_t i = 1; i < target.chunk.size(); ++i) row_size *= target.chunk[i];
  const std::uint64_t end = bytes_.size();
  std::vector<hsize_t> at(target.extent.size(), 0);
  if (layer > 0) at[1] = static_cast<hsize_t>(layer);
  for (std::int64_t first = 0; first < count; first += step) {
    at[0] = static_cast<hsize_t>(first);
    std::optional<h5::Place> place;
    try {
      place = h5::chunk_place(target, at);
    } catch (const TraceError& error) {
      if (why != nullptr) *why = error.what();
      return first;
    }
    if (!place) continue;  // the recorder's filters left the row out
    const std::uint64_t there = place->offset >= end ? 0 : end - place->offset;
    const std::int64_t rows = std::min(step, count - first);
    // The file may end inside a chunk of rows. A compressed chunk is whole or missing.
    const auto kept = target.filtered
                          ? (there < place->bytes ? 0 : rows)
                          : static_cast<std::int64_t>(there / std::max<std::uint64_t>(row_size, 1));
    if (kept >= rows) continue;
    if (why != nullptr) {
      *why = fmt::format("{}: the data of {} {} is after the end of the file, byte {}", target.name,
                         to_string(spec_of(field).axes[0]), first + kept, end);
    }
    return first + kept;
  }
  return count;
}

void StoredTrace::check_not_cut(std::int64_t rows) const {
  if (file_.mode == h5::OpenMode::read) return;  // HDF5 has checked the length of the file
  constexpr std::int64_t kRowsBack = 4096;       // a recorded row is among the last so many
  for (const DatasetSpec& spec : kDatasets) {
    if (!has(spec.field) || !spec.per_row() || rows == 0) continue;
    const h5::Dataset& target = dataset(spec.field);
    if (target.chunk.empty()) continue;
    if (spec.storage == Storage::column) {
      (void)read(spec.field, rows - 1, 1, kAllLayersOfRow);
      continue;
    }
    const bool by_layer = spec.storage == Storage::row_layer;
    const std::int64_t layers = by_layer ? axis_length(Axis::layer, meta_) : 1;
    const auto written = [&](std::int64_t row) { return chunk_written(spec.field, row, 0); };
    std::int64_t last = rows - 1;
    while (last > std::max<std::int64_t>(0, rows - kRowsBack) && !written(last)) --last;
    for (std::int64_t layer = 0; layer < layers; ++layer) {
      std::vector<hsize_t> at(target.extent.size(), 0);
      at[0] = static_cast<hsize_t>(last) / target.chunk[0] * target.chunk[0];
      if (by_layer) at[1] = static_cast<hsize_t>(layer) / target.chunk[1] * target.chunk[1];
      const auto place = h5::chunk_place(target, at);
      if (!place || place->offset + place->bytes <= bytes_.size()) continue;
      throw CorruptTrace(fmt::format(
          "{}: row {}: expected data at bytes {} to {}, got the end of the file at {}. "
          "HINT: the file was cut off; `blockscope repack --repair` keeps the rows that "
          "are whole.",
          target.name, last, place->offset, place->offset + place->bytes, bytes_.size()));
    }
  }
}

void StoredTrace::check_index(Field field) const {
  const h5::Dataset& target = dataset(field);
  const DatasetSpec& spec = spec_of(field);
  if (target.chunk.empty()) return;
  const bool by_layer = spec.storage == Storage::row_layer || spec.storage == Storage::column_layer;
  std::vector<hsize_t> at(target.extent.size(), 0);
  for (; at[0] < target.extent[0]; at[0] += target.chunk[0]) {
    const hsize_t layers = by_layer ? target.extent[1] : 1;
    for (hsize_t layer = 0; layer < layers; layer += by_layer ? target.chunk[1] : 1) {
      if (by_layer) at[1] = layer;
      (void)h5::chunk_written(target, at);
    }
  }
}

bool StoredTrace::chunk_written(Field field, std::int64_t row, std::int64_t layer) const {
  const DatasetSpec& spec = spec_of(field);
  const h5::Dataset& target = dataset(field);
  if (spec.storage != Storage::row && spec.storage != Storage::row_layer) return true;
  std::vector<hsize_t> at(spec.rank, 0);
  at[0] = static_cast<hsize_t>(row);
  if (spec.storage == Storage::row_layer) {
    at[1] = static_cast<hsize_t>(std::max<std::int64_t>(layer, 0));
  }
  if (at[0] >= target.extent[0] || at[1] >= target.extent[1]) return false;
  for (std::size_t i = 0; i < at.size() && !target.chunk.empty(); ++i) {
    at[i] = at[i] / target.chunk[i] * target.chunk[i];
  }
  return h5::chunk_written(target, at);
}

}  // namespace blockscope
