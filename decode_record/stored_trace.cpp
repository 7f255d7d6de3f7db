#include "decode_record/stored_trace.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace blockscope {
namespace {

constexpr std::array<unsigned char, 8> kHdf5Signature{0x89, 'H', 'D', 'F', '\r', '\n', 0x1a, '\n'};
// One row of one dataset; more comes from a damaged file. (8B model: 19 MB.)
constexpr std::size_t kLargestRow = std::size_t{1} << 32U;
constexpr std::size_t kLargestRead = std::size_t{1} << 36U;

[[noreturn]] void corrupt(const std::string& where, std::string_view what) {
  throw CorruptTrace(fmt::format("{}: {}. HINT: the file is damaged.", where, what));
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

StoredTrace::Box StoredTrace::box(Field field, std::int64_t first, std::int64_t count,
                                  std::int64_t layer) const {
  const DatasetSpec& spec = spec_of(field);
  const h5::Dataset& target = dataset(field);
  const std::int64_t rows_there = extent(field);
  if (first < 0 || count < 0 || first > rows_there || count > rows_there - first) {
    corrupt(target.name, fmt::format("expected rows in [0, {}), got [{}, {} + {})", rows_there,
                                     first, first, count));
  }
  std::vector<hsize_t> start(spec.rank, 0);
  std::vector<hsize_t> shape = target.extent;
  start[0] = static_cast<hsize_t>(first);
  shape[0] = static_cast<hsize_t>(count);
  if (layer >= 0) {
    const auto axis = std::find(spec.axes.begin() + 1, spec.axes.begin() + spec.rank, Axis::layer) -
                      spec.axes.begin();
    const auto i = static_cast<std::size_t>(axis);
    const hsize_t layers = i < spec.rank ? shape[i] : 0;
    if (static_cast<hsize_t>(layer) >= layers) {
      throw UsageError(
          fmt::format("{}: expected a layer slot in [0, {}), got {}", target.name, layers, layer));
    }
    start[i] = static_cast<hsize_t>(layer);
    shape[i] = 1;
  }
  std::size_t bytes = h5::size_of(target.element);
  for (const hsize_t length : shape) bytes *= length;
  // Fill values cost no disk: only the memory asked for can tell that a count is absurd.
  if (bytes > kLargestRead) {
    throw TraceError(fmt::format("{}: {} rows are too many to read at once", target.name, count));
  }
  return Box{std::move(start), std::move(shape), bytes};
}

std::vector<std::byte> StoredTrace::read(Field field, std::int64_t first, std::int64_t count,
                                         std::int64_t layer) const {
  const Box part = box(field, first, count, layer);
  std::vector<std::byte> values(part.bytes);
  if (part.bytes != 0) h5::read_words(dataset(field), part.start, part.shape, values.data());
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
  const bool whole_chunk = target.chunk == part.shape;
  if (whole_chunk && h5::read_chunk(target, part.start, out.data(), part.bytes)) return;
  if (part.bytes != 0) h5::read_words(target, part.start, part.shape, out.data());
}

void StoredTrace::prefetch(Field field, std::int64_t row, std::int64_t layer) const {
  const Box part = box(field, row, 1, layer);
  const h5::Dataset& target = dataset(field);
  if (target.chunk == part.shape) h5::prefetch_chunk(target, part.start);
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
