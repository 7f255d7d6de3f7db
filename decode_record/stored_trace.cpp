#include "decode_record/stored_trace.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "decode_record/trace_file.h"

namespace blockscope {
namespace {

constexpr std::array<unsigned char, 8> kHdf5Signature{0x89, 'H', 'D', 'F', '\r', '\n', 0x1a, '\n'};
// One row of one dataset; more comes from a damaged file. (8B model: 19 MB.)
constexpr std::size_t kLargestRow = std::size_t{1} << 32U;

[[noreturn]] void corrupt(const std::string& where, std::string_view what) {
  throw CorruptTrace(fmt::format("{}: {}. HINT: the file is damaged.", where, what));
}

/// What a layer selection means for a dataset: a row is [outer, layers, inner bytes].
struct LayerSplit {
  std::size_t outer = 1;
  std::size_t layers = 1;
  std::size_t inner = 1;
};

LayerSplit split_of(const DatasetSpec& spec, const TraceMeta& meta) {
  LayerSplit split;
  split.inner = element_size(spec, meta);
  bool behind = false;
  for (std::size_t i = 1; i < spec.rank; ++i) {
    const auto length = static_cast<std::size_t>(axis_length(spec.axes[i], meta));
    if (spec.axes[i] == Axis::layer) {
      split.layers = length;
      split.outer = split.inner / element_size(spec, meta);
      split.inner = element_size(spec, meta);
      behind = true;
    } else {
      split.inner *= length;
    }
  }
  if (!behind) split.layers = 0;
  return split;
}

h5::File open_any(const std::string& path) {
  // A file that is being written, or whose writer was killed, opens in SWMR mode only.
  const bool partial = path.ends_with(".partial");
  try {
    return h5::open_file(path, partial ? h5::OpenMode::swmr_read : h5::OpenMode::read);
  } catch (const TraceError&) {
    try {
      return h5::open_file(path, partial ? h5::OpenMode::read : h5::OpenMode::swmr_read);
    } catch (const TraceError&) {
      // The first attempt's message is the one that fits the name.
    }
    throw;
  }
}

void check_signature(const ReadOnlyFile& file, const std::string& path) {
  std::array<unsigned char, 8> found{};
  if (file.size() >= found.size()) file.read(0, found.data(), found.size(), path);
  if (found != kHdf5Signature) {
    throw NotATrace(
        fmt::format("{}: expected an HDF5 file, got something else. HINT: traces come "
                    "from `blockscope capture`.",
                    path));
  }
}

}  // namespace

ReadOnlyFile::ReadOnlyFile(const std::string& path)
    : fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
  if (fd_ < 0) {
    throw TraceError(fmt::format("{}: can't open the trace: {}", path, std::strerror(errno)));
  }
}

ReadOnlyFile::~ReadOnlyFile() {
  if (fd_ >= 0) ::close(fd_);
}

std::uint64_t ReadOnlyFile::size() const {
  struct stat status = {};
  return ::fstat(fd_, &status) == 0 && S_ISREG(status.st_mode)
             ? static_cast<std::uint64_t>(status.st_size)
             : 0;
}

void ReadOnlyFile::read(std::uint64_t offset, void* data, std::size_t bytes,
                        const std::string& where) const {
  auto* at = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t got = ::pread(fd_, at, bytes, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw TraceError(fmt::format("{}: read: {}", where, std::strerror(errno)));
    if (got == 0) corrupt(where, fmt::format("the file ends before byte {}", offset + bytes));
    at += got;
    offset += static_cast<std::uint64_t>(got);
    bytes -= static_cast<std::size_t>(got);
  }
}

StoredTrace::StoredTrace(const std::string& path) : bytes_(path) {
  check_signature(bytes_, path);
  file_ = open_any(path);
  meta_ = read_header(file_);
}

void StoredTrace::expire() {
  for (Slot& slot : slots_) slot.stale = true;
}

bool StoredTrace::has(Field field) const { return exists_in(spec_of(field), meta_); }

h5::Dataset& StoredTrace::dataset(Field field) const {
  Slot& slot = slots_.at(static_cast<std::size_t>(field));
  const DatasetSpec& spec = spec_of(field);
  if (slot.dataset && slot.stale && spec.extendible()) h5::refresh(*slot.dataset);
  slot.stale = false;
  if (slot.dataset) return *slot.dataset;
  if (!has(field)) {
    throw UsageError(
        fmt::format("{}:{}: this trace has no such dataset (its level is {}). HINT: "
                    "capture again with a higher --record level.",
                    path(), spec.path, to_string(meta_.level)));
  }
  h5::Dataset opened =
      h5::open_dataset(file_, std::string(spec.path), file_element(spec, meta_), spec.rank);
  // Pieces are not part of the meta that is read back.
  const bool free_length = spec.axes[0] == Axis::piece_boundary || spec.axes[0] == Axis::piece_byte;
  const std::vector<std::int64_t> shape =
      free_length ? std::vector<std::int64_t>(1) : shape_of(spec, meta_);
  std::size_t bytes = element_size(spec, meta_);
  for (std::size_t i = 0; i < shape.size(); ++i) {
    const bool any = i == 0 && (spec.extendible() || free_length);
    if (!any && std::cmp_not_equal(opened.extent[i], shape[i])) {
      corrupt(opened.name, fmt::format("axis {}: expected length {}, got {}",
                                       to_string(spec.axes[i]), shape[i], opened.extent[i]));
    }
    if (i > 0) bytes *= static_cast<std::size_t>(shape[i]);
    if (bytes > kLargestRow) corrupt(opened.name, "a row is too large");
  }
  slot.dataset = std::move(opened);
  return *slot.dataset;
}

std::int64_t StoredTrace::extent(Field field) const {
  return static_cast<std::int64_t>(std::min<hsize_t>(dataset(field).extent[0], hsize_t{1} << 62U));
}

std::int64_t StoredTrace::cell(Field field) const {
  const h5::Dataset& target = dataset(field);
  const auto address = h5::contiguous_address(target);
  if (!address) corrupt(target.name, "has no value");
  if (target.element == h5::Element::u8) {
    std::uint8_t value = 0;
    bytes_.read(*address, &value, sizeof(value), target.name);
    return value;
  }
  std::int64_t value = 0;
  bytes_.read(*address, &value, sizeof(value), target.name);
  return value;
}

/// Whether the dataset lies in the file as the writer puts it there.
bool StoredTrace::reads_raw(const DatasetSpec& spec, const h5::Dataset& target) const {
  if (target.filtered || target.chunk.empty() || !spec.extendible()) return false;
  const bool by_layer = spec.storage == Storage::row_layer || spec.storage == Storage::column_layer;
  for (std::size_t i = 1; i < spec.rank; ++i) {
    const hsize_t expected = by_layer && i == 1 ? 1 : target.extent[i];
    if (target.chunk[i] != expected) return false;
  }
  return true;
}

void StoredTrace::read_chunked(const DatasetSpec& spec, const h5::Dataset& target,
                               std::int64_t first, std::int64_t count, std::int64_t layer,
                               std::vector<std::byte>& out) const {
  const bool by_layer = spec.storage == Storage::row_layer || spec.storage == Storage::column_layer;
  const std::size_t whole_row = row_bytes(spec, meta_);
  const LayerSplit split = split_of(spec, meta_);
  // Bytes of a row in one chunk, and where the wanted part lies in it.
  const std::size_t chunk_row = by_layer ? split.inner : whole_row;
  const bool part_of_row = layer >= 0 && !by_layer && split.outer == 1;
  const std::size_t skip = part_of_row ? static_cast<std::size_t>(layer) * split.inner : 0;
  const std::size_t take = part_of_row ? split.inner : chunk_row;
  const std::int64_t first_layer = by_layer && layer >= 0 ? layer : 0;
  const std::int64_t end_layer =
      !by_layer ? 1 : (layer >= 0 ? layer + 1 : static_cast<std::int64_t>(split.layers));
  const auto layers_here = static_cast<std::size_t>(end_layer - first_layer);
  const auto chunk_rows = static_cast<std::int64_t>(target.chunk[0]);
  std::vector<hsize_t> at(spec.rank, 0);
  for (std::int64_t row = first; row < first + count;) {
    const std::int64_t chunk_start = row / chunk_rows * chunk_rows;
    const std::int64_t end = std::min(chunk_start + chunk_rows, first + count);
    at[0] = static_cast<hsize_t>(chunk_start);
    for (std::int64_t slot = first_layer; slot < end_layer; ++slot) {
      if (by_layer) at[1] = static_cast<hsize_t>(slot);
      const auto place = h5::find_chunk(target, at);
      if (!place) continue;
      if (place->bytes != static_cast<std::size_t>(chunk_rows) * chunk_row) {
        corrupt(target.name,
                fmt::format("expected a chunk of {} bytes, got {}",
                            static_cast<std::size_t>(chunk_rows) * chunk_row, place->bytes));
      }
      const bool contiguous = take == chunk_row && layers_here == 1;
      const std::int64_t step = contiguous ? end - row : 1;
      for (std::int64_t r = row; r < end; r += step) {
        const std::size_t to = (static_cast<std::size_t>(r - first) * layers_here +
                                static_cast<std::size_t>(slot - first_layer)) *
                               take;
        bytes_.read(place->address + static_cast<std::size_t>(r - chunk_start) * chunk_row + skip,
                    out.data() + to, static_cast<std::size_t>(step) * take, target.name);
      }
    }
    row = end;
  }
}

void StoredTrace::read_slow(const DatasetSpec& spec, const h5::Dataset& target, std::int64_t first,
                            std::int64_t count, std::int64_t layer, StoredRows& rows) const {
  std::vector<hsize_t> start(spec.rank, 0);
  std::vector<hsize_t> shape = target.extent;
  start[0] = static_cast<hsize_t>(first);
  shape[0] = static_cast<hsize_t>(count);
  for (std::size_t i = 1; layer >= 0 && i < spec.rank; ++i) {
    if (spec.axes[i] != Axis::layer) continue;
    start[i] = static_cast<hsize_t>(layer);
    shape[i] = 1;
  }
  rows.widened = target.element == h5::Element::bf16;
  if (rows.widened) rows.bytes.resize(rows.bytes.size() * 2);
  h5::read(target, start, shape, rows.bytes.data());
}

StoredRows StoredTrace::read(Field field, std::int64_t first, std::int64_t count,
                             std::int64_t layer) const {
  const DatasetSpec& spec = spec_of(field);
  const h5::Dataset& target = dataset(field);
  const std::int64_t rows_there = extent(field);
  if (first < 0 || count < 0 || first > rows_there || count > rows_there - first) {
    corrupt(target.name, fmt::format("expected rows in [0, {}), got [{}, {} + {})", rows_there,
                                     first, first, count));
  }
  const LayerSplit split = split_of(spec, meta_);
  if (layer >= 0 && std::cmp_greater_equal(layer, split.layers)) {
    throw UsageError(fmt::format("{}: expected a layer slot in [0, {}), got {}", target.name,
                                 split.layers, layer));
  }
  std::size_t per_row = row_bytes(spec, meta_);
  if (layer >= 0) per_row /= split.layers;
  // Fill values cost no disk: only the memory asked for can tell that a count is absurd.
  if (std::cmp_greater(count, (std::size_t{1} << 40U) / std::max<std::size_t>(per_row, 1))) {
    throw TraceError(fmt::format("{}: {} rows are too many to read at once", target.name, count));
  }
  StoredRows rows;
  const bool raw = reads_raw(spec, target);
  const bool strided = raw && layer >= 0 && split.outer > 1;
  rows.bytes.resize(static_cast<std::size_t>(count) * per_row * (strided ? split.layers : 1));
  if (rows.bytes.empty()) return rows;
  if (!raw) {
    read_slow(spec, target, first, count, layer, rows);
    return rows;
  }
  fill_missing(rows.bytes, target.element);
  read_chunked(spec, target, first, count, strided ? kAllLayersOfRow : layer, rows.bytes);
  if (!strided) return rows;
  std::vector<std::byte> part(static_cast<std::size_t>(count) * per_row);
  const std::size_t pieces = static_cast<std::size_t>(count) * split.outer;
  for (std::size_t i = 0; i < pieces; ++i) {
    const std::size_t from = (i * split.layers + static_cast<std::size_t>(layer)) * split.inner;
    std::memcpy(part.data() + i * split.inner, rows.bytes.data() + from, split.inner);
  }
  rows.bytes = std::move(part);
  return rows;
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
  return h5::find_chunk(target, at).has_value();
}

}  // namespace blockscope
