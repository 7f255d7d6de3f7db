#include "decode_record/write/trace_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "decode_record/hdf5/h5_superblock.h"

namespace blockscope {
namespace {

// Room is reserved in steps, because each change of extents writes every dataset's header.
constexpr std::int64_t kGrowth = 256;

std::vector<hsize_t> to_hsize(const std::vector<std::int64_t>& values) {
  return {values.begin(), values.end()};
}

Axis axis_at(std::size_t i) { return static_cast<Axis>(i); }

/// Whether chunks hold one row each: then rows without values have no chunk.
bool holds_arrays(const DatasetSpec& spec) {
  return spec.axes[0] == Axis::row &&
         (spec.storage == Storage::row || spec.storage == Storage::row_layer);
}

}  // namespace

void fill_missing(std::vector<std::byte>& bytes, h5::Element element) {
  const auto fill = [&bytes](auto word) {
    for (std::size_t at = 0; at + sizeof(word) <= bytes.size(); at += sizeof(word)) {
      std::memcpy(bytes.data() + at, &word, sizeof(word));
    }
  };
  switch (element) {
    case h5::Element::u8:
      return fill(std::uint8_t{0});
    case h5::Element::i32:
      return fill(std::int32_t{-1});
    case h5::Element::i64:
      return fill(std::int64_t{-1});
    case h5::Element::f32:
      return fill(std::uint32_t{0x7FC00000});
    case h5::Element::bf16:
      return fill(std::uint16_t{0x7FC0});
    case h5::Element::f16:
      return fill(std::uint16_t{0x7E00});
    case h5::Element::f64:
      return fill(std::uint64_t{0x7FF8000000000000});
  }
}

TraceFile TraceFile::create(const std::string& path, const TraceMeta& meta, bool replace) {
  OwnFile own = create_unborn(path);
  // Another process may have created and renamed its file in the meantime.
  const auto check_alone = [&] {
    if (has_writer(path)) refuse_second_writer(path, path);
    if (!own.has_its_name()) refuse_second_writer(path, path + ".new");
  };
  try {
    check_alone();
    TraceFile result = fill(own.direct_name(), path, meta, 0, {});
    h5::start_swmr_write(result.file_);
    check_alone();
    if (const std::string problem = own.rename(path, replace, 1); !problem.empty()) {
      check_alone();
      throw TraceError(fmt::format("{}: can't be created: {} {}", path, own.path(), problem));
    }
    result.own_ = std::move(own);
    result.note_size();
    return result;
  } catch (...) {
    own.remove();
    throw;
  }
}

TraceFile TraceFile::create_in(const OutputFile& output, const TraceMeta& meta, int deflate,
                               const std::vector<VirtualSource>& sources) {
  return fill(output.temporary(), output.path(), meta, deflate, sources);
}

TraceFile TraceFile::fill(const std::string& empty, const std::string& path, const TraceMeta& meta,
                          int deflate, const std::vector<VirtualSource>& sources) {
  h5::File file = h5::create_file(empty);
  file.path = path;  // the name in messages
  TraceFile result(std::move(file), meta);
  result.create_datasets(deflate, sources);
  result.create_scales();
  write_header_attributes(result.file_, meta);
  const std::int64_t none = 0;
  const std::uint8_t incomplete = 0;
  result.overwrite(Field::step_committed, 0, &none);
  result.overwrite(Field::sequence_committed, 0, &none);
  result.overwrite(Field::run_complete, 0, &incomplete);
  h5::flush(result.file_);
  return result;
}

TraceFile TraceFile::reopen(const std::string& path, const TraceMeta& meta) {
  OwnFile own = lock_writer(path);
  check_resumable(path, meta);
  restore_length(own);
  h5::File file = h5::open_file(own.direct_name(), h5::OpenMode::swmr_write, true);
  file.path = path;
  TraceFile result(std::move(file), meta);
  result.own_ = std::move(own);
  for (const DatasetSpec& spec : kDatasets) {
    if (!exists_in(spec, meta)) continue;
    Column& target = result.columns_[index(spec.field)];
    target.dataset =
        h5::open_dataset(result.file_, std::string(spec.path), file_element(spec, meta), spec.rank);
    if (!spec.extendible()) continue;
    const auto axis = static_cast<std::size_t>(spec.axes[0]);
    target.written = static_cast<std::int64_t>(target.dataset->extent[0]);
    result.lengths_[axis] = std::max(result.lengths_[axis], target.written);
    result.extents_[axis] = result.lengths_[axis];
  }
  for (std::size_t i = 0; i < result.bare_scales_.size(); ++i) {
    result.bare_scales_[i] = open_bare_scale(result.file_, axis_at(i));
  }
  result.note_size();
  return result;
}

namespace {

/// The rows of a dataset in the sources, one after the other. Sources without rows are left out.
std::vector<h5::VirtualPart> parts_of(const DatasetSpec& spec,
                                      const std::vector<VirtualSource>& sources) {
  std::vector<h5::VirtualPart> parts;
  hsize_t first = 0;
  for (const VirtualSource& source : sources) {
    const auto rows = static_cast<hsize_t>(source.lengths[static_cast<std::size_t>(spec.axes[0])]);
    if (rows > 0) parts.push_back({source.file, first, rows});
    first += rows;
  }
  return parts;
}

}  // namespace

void TraceFile::create_datasets(int deflate, const std::vector<VirtualSource>& sources) {
  for (const DatasetSpec& spec : kDatasets) {
    if (!exists_in(spec, meta_)) continue;
    h5::DatasetLayout layout{
        file_element(spec, meta_), to_hsize(shape_of(spec, meta_)), {}, deflate};
    if (spec.extendible()) layout.chunk = to_hsize(chunk_of(spec, meta_));
    Column& target = columns_[index(spec.field)];
    const std::string path(spec.path);
    const auto parts = is_virtual(spec) ? parts_of(spec, sources) : std::vector<h5::VirtualPart>{};
    if (parts.empty()) {
      target.dataset = h5::create_dataset(file_, path, layout);
    } else {
      layout.extent[0] = parts.back().first + parts.back().rows;
      target.dataset =
          h5::create_virtual_dataset(file_, path, layout.element, layout.extent, parts);
    }
    if (!spec.description.empty()) {
      h5::write_attribute(file_, path, "description", spec.description);
    }
    if (spec.storage != Storage::fixed) continue;
    const std::vector<std::byte> values = fixed_values(spec, meta_);
    const std::vector<hsize_t> start(spec.rank, 0);
    if (!values.empty()) h5::write(*target.dataset, start, layout.extent, values.data());
  }
}

/// Axes with values have a coordinate dataset; the others get an empty one under the name that the
/// netCDF-4 convention gives to a dimension without values.
void TraceFile::create_scales() {
  std::array<const h5::Dataset*, static_cast<std::size_t>(Axis::count)> scales{};
  for (const DatasetSpec& spec : kDatasets) {
    const auto& dataset = columns_[index(spec.field)].dataset;
    if (!dataset) continue;
    for (std::size_t i = 0; i < spec.rank; ++i) {
      const auto axis = static_cast<std::size_t>(spec.axes[i]);
      const std::string name(to_string(spec.axes[i]));
      if (spec.path == "/" + name) {
        h5::make_scale(*dataset, name);
        scales[axis] = &*dataset;
        continue;
      }
      if (scales[axis] == nullptr) {
        const bool growing = i == 0 && spec.extendible();
        const hsize_t length = growing ? 0 : static_cast<hsize_t>(axis_length(spec.axes[i], meta_));
        h5::DatasetLayout layout{h5::Element::u8, {length}, {}, 0};
        if (growing) layout.chunk = {1024};
        bare_scales_[axis] = h5::create_dataset(file_, "/" + name, layout);
        h5::make_scale(
            *bare_scales_[axis],
            fmt::format("This is a netCDF dimension but not a netCDF variable.{:>10}", length));
        scales[axis] = &*bare_scales_[axis];
      }
      h5::attach_scale(*dataset, *scales[axis], static_cast<unsigned>(i));
    }
  }
}

TraceFile::Column& TraceFile::column(Field field) {
  Column& result = columns_[index(field)];
  if (!result.dataset) {
    throw TraceError(
        fmt::format("{}:{}: this trace has no such dataset", file_.path, spec_of(field).path));
  }
  return result;
}

const TraceFile::Column& TraceFile::column(Field field) const {
  return const_cast<TraceFile*>(this)->column(field);
}

void TraceFile::set_axis_extent(Axis axis, std::int64_t extent) {
  const auto change = [extent](h5::Dataset& dataset) {
    if (!dataset.parts.empty()) return;  // its parts give its length
    std::vector<hsize_t> shape = dataset.extent;
    shape[0] = static_cast<hsize_t>(extent);
    h5::set_extent(dataset, shape);
  };
  for (const DatasetSpec& spec : kDatasets) {
    auto& dataset = columns_[index(spec.field)].dataset;
    if (dataset && spec.extendible() && spec.axes[0] == axis) change(*dataset);
  }
  auto& scale = bare_scales_[static_cast<std::size_t>(axis)];
  if (scale) change(*scale);
  extents_[static_cast<std::size_t>(axis)] = extent;
}

void TraceFile::grow(Axis axis, std::int64_t count) {
  const auto i = static_cast<std::size_t>(axis);
  lengths_[i] += count;
  if (lengths_[i] <= extents_[i]) return;
  // A quarter more than needed keeps the number of extensions of a long axis small.
  set_axis_extent(axis, lengths_[i] + std::max(kGrowth, lengths_[i] / 4));
}

void TraceFile::append(Field field, const void* rows, std::size_t bytes) {
  if (bytes == 0) return;
  auto& pending = column(field).pending;
  const auto* first = static_cast<const std::byte*>(rows);
  pending.insert(pending.end(), first, first + bytes);
  pending_bytes_ += static_cast<std::int64_t>(bytes);
}

void TraceFile::write_row(Field field, std::int64_t row, const void* data, std::size_t bytes) {
  const DatasetSpec& spec = spec_of(field);
  std::vector<hsize_t> offset(spec.rank, 0);
  offset[0] = static_cast<hsize_t>(row);
  if (spec.storage == Storage::row) {
    h5::Dataset& dataset = *column(field).dataset;
    if (dataset.filtered) {
      std::vector<hsize_t> shape = dataset.extent;
      shape[0] = 1;
      h5::write(dataset, offset, shape, data);
    } else {
      h5::write_chunk(dataset, offset, data, bytes);
    }
    return;
  }
  const std::int64_t layers = axis_length(Axis::layer, meta_);
  const std::size_t layer_bytes = bytes / static_cast<std::size_t>(layers);
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    const auto* part =
        static_cast<const std::byte*>(data) + static_cast<std::size_t>(layer) * layer_bytes;
    write_layer(field, row, 1, layer, part, layer_bytes);
  }
}

void TraceFile::write_layer(Field field, std::int64_t first, std::int64_t count, std::int64_t layer,
                            const void* data, std::size_t bytes) {
  const h5::Dataset& dataset = *column(field).dataset;
  std::vector<hsize_t> start(dataset.extent.size(), 0);
  start[0] = static_cast<hsize_t>(first);
  start[1] = static_cast<hsize_t>(layer);
  if (spec_of(field).storage == Storage::row_layer && !dataset.filtered) {
    h5::write_chunk(dataset, start, data, bytes);
    return;
  }
  std::vector<hsize_t> shape = dataset.extent;
  shape[0] = static_cast<hsize_t>(count);
  shape[1] = 1;
  h5::write(dataset, start, shape, data);
}

void TraceFile::overwrite(Field field, std::int64_t at, const void* row) {
  const h5::Dataset& dataset = *column(field).dataset;
  std::vector<hsize_t> start(dataset.extent.size(), 0);
  std::vector<hsize_t> count = dataset.extent;
  start[0] = static_cast<hsize_t>(at);
  count[0] = 1;
  h5::write(dataset, start, count, row);
}

void TraceFile::write_pending() {
  for (const DatasetSpec& spec : kDatasets) {
    Column& target = columns_[index(spec.field)];
    if (target.pending.empty()) continue;
    const std::size_t rows = target.pending.size() / row_bytes(spec, meta_);
    std::vector<hsize_t> start(spec.rank, 0);
    std::vector<hsize_t> count = target.dataset->extent;
    start[0] = static_cast<hsize_t>(target.written);
    count[0] = rows;
    h5::write(*target.dataset, start, count, target.pending.data());
    target.written += static_cast<std::int64_t>(rows);
    target.pending.clear();
  }
  pending_bytes_ = 0;
}

void TraceFile::flush() {
  write_pending();
  h5::flush(file_);
}

void TraceFile::flush(Field field) { h5::flush(*column(field).dataset); }

void TraceFile::truncate(Axis axis, std::int64_t length) {
  set_axis_extent(axis, length);
  lengths_[static_cast<std::size_t>(axis)] = length;
  for (const DatasetSpec& spec : kDatasets) {
    if (spec.extendible() && spec.axes[0] == axis) columns_[index(spec.field)].written = length;
  }
}

void TraceFile::drop_rows_behind(std::int64_t length) {
  const std::int64_t reserved = extents_[static_cast<std::size_t>(Axis::row)];
  std::int64_t end = reserved;
  for (const DatasetSpec& spec : kDatasets) {
    const auto& dataset = columns_[index(spec.field)].dataset;
    if (!dataset || !holds_arrays(spec)) continue;
    const auto last = h5::last_chunk_row(*dataset);
    if (!last) continue;
    // More than a writer reserves between two flushes: a damaged index can name any row.
    if (*last > static_cast<hsize_t>(reserved + 8 * std::max(kGrowth, reserved / 4))) {
      throw CorruptTrace(
          fmt::format("{}: its index names row {}, and {} rows have room. HINT: the "
                      "file is damaged; start a new trace with --force.",
                      dataset->name, *last, reserved));
    }
    end = std::max(end, static_cast<std::int64_t>(*last) + 1);
  }
  // HDF5 removes the chunks between two extents, but only up to the last element that the index
  // header records. A block of the index may hold later elements. A new element after everything
  // that a writer can write between two flushes makes HDF5 find all of them.
  constexpr std::int64_t kInFlight = 4096;
  end += kInFlight;
  set_axis_extent(Axis::row, end);
  for (const DatasetSpec& spec : kDatasets) {
    const auto& dataset = columns_[index(spec.field)].dataset;
    if (!dataset || !holds_arrays(spec) || dataset->filtered) continue;
    std::vector<hsize_t> at(spec.rank, 0);
    at[0] = static_cast<hsize_t>(end - 1);
    if (spec.storage == Storage::row_layer) at[1] = dataset->extent[1] - 1;
    std::size_t bytes = h5::size_of(dataset->element);
    for (const hsize_t length_of_axis : dataset->chunk) bytes *= length_of_axis;
    const std::vector<std::byte> nothing(bytes);
    h5::write_chunk(*dataset, at, nothing.data(), bytes);
  }
  truncate(Axis::row, length);
}

void TraceFile::trim() {
  write_pending();
  for (std::size_t i = 0; i < extents_.size(); ++i) {
    if (extents_[i] != lengths_[i]) set_axis_extent(axis_at(i), lengths_[i]);
  }
  h5::flush(file_);
}

void TraceFile::abandon() {
  for (Column& target : columns_) {
    if (target.dataset) target.dataset->handle.abandon();
  }
  for (auto& scale : bare_scales_) {
    if (scale) scale->handle.abandon();
  }
  file_.handle.abandon();
}

OwnFile TraceFile::close() {
  for (Column& target : columns_) target.dataset.reset();
  for (auto& scale : bare_scales_) scale.reset();
  h5::close(file_);
  if (!own_) return {};
  const auto end = h5::end_of_file(own_.direct_name());
  if (!end || std::cmp_less(own_.size(), *end)) {
    refuse_harm(fmt::format("was cut while it was written: expected {} bytes, got {}",
                            end ? fmt::format("at least {}", *end) : "an HDF5 file's first",
                            own_.size()));
  }
  note_size();
  return std::move(own_);
}

void TraceFile::check_unharmed(bool named) const {
  if (!named && own_.size() >= size_) return;
  if (const std::string what = own_.harm(size_); !what.empty()) refuse_harm(what);
}

}  // namespace blockscope
