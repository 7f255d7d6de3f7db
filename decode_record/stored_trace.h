// An open trace as raw rows of its datasets: HDF5 finds the bytes and hands them over as they are,
// because its own conversion of bfloat16 is slow. Internal to decode_record.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "decode_record/h5.h"
#include "decode_record/trace_header.h"

namespace blockscope {

/// A file descriptor for pread.
class ReadOnlyFile {
 public:
  explicit ReadOnlyFile(const std::string& path);
  ReadOnlyFile(ReadOnlyFile&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  ReadOnlyFile& operator=(ReadOnlyFile&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~ReadOnlyFile();
  std::uint64_t size() const;
  /// Throws CorruptTrace when the bytes are not all there.
  void read(std::uint64_t offset, void* data, std::size_t bytes, const std::string& where) const;

 private:
  int fd_ = -1;
};

class StoredTrace {
 public:
  explicit StoredTrace(const std::string& path);

  const std::string& path() const { return file_.path; }
  const TraceMeta& meta() const { return meta_; }
  std::uint64_t file_bytes() const { return bytes_.size(); }
  bool has(Field field) const;
  /// Rows along the first axis, as the file has them now.
  std::int64_t extent(Field field) const;
  std::int64_t cell(Field field) const;

  /// Elements [first, first + count) of the first axis in the file's element type; one recorded
  /// layer, or all (kAllLayersOfRow).
  static constexpr std::int64_t kAllLayersOfRow = -1;
  std::vector<std::byte> read(Field field, std::int64_t first, std::int64_t count,
                              std::int64_t layer) const;
  /// The same into `out`, which must have the size of the values.
  void read_into(Field field, std::int64_t first, std::int64_t count, std::int64_t layer,
                 std::span<std::byte> out) const;
  /// See TraceReader::prefetch.
  void prefetch(Field field, std::int64_t row, std::int64_t layer) const;
  bool chunk_written(Field field, std::int64_t row, std::int64_t layer) const;

  template <typename Value>
  std::vector<Value> column(Field field, std::int64_t first, std::int64_t count) const;

  /// The next access to a dataset looks at the file anew.
  void expire();

 private:
  struct Slot {
    std::optional<h5::Dataset> dataset;
    bool stale = false;
  };
  /// The part of a dataset that a read asks for.
  struct Box {
    std::vector<hsize_t> start;
    std::vector<hsize_t> shape;
    std::size_t bytes = 0;
  };
  h5::Dataset& dataset(Field field) const;
  Box box(Field field, std::int64_t first, std::int64_t count, std::int64_t layer) const;

  ReadOnlyFile bytes_;
  h5::File file_;
  TraceMeta meta_;
  mutable std::array<Slot, kNumFields> slots_;
};

template <typename Value>
std::vector<Value> StoredTrace::column(Field field, std::int64_t first, std::int64_t count) const {
  const std::vector<std::byte> rows = read(field, first, count, kAllLayersOfRow);
  std::vector<Value> values(rows.size() / sizeof(Value));
  if (!values.empty()) {
    std::copy_n(rows.data(), values.size() * sizeof(Value),
                reinterpret_cast<std::byte*>(values.data()));
  }
  return values;
}

}  // namespace blockscope
