// Opens a trace by its name, even while a writer writes or renames it. Internal to decode_record.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "decode_record/hdf5/h5.h"

namespace blockscope {

/// A file descriptor for pread.
class ReadOnlyFile {
 public:
  explicit ReadOnlyFile(const std::string& path);
  /// For the file that HDF5 has open, even if its name refers to another file by now.
  explicit ReadOnlyFile(const h5::File& file);
  ReadOnlyFile(ReadOnlyFile&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  ReadOnlyFile& operator=(ReadOnlyFile&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~ReadOnlyFile();
  std::uint64_t size() const;
  /// Throws CorruptTrace if the file ends before the last byte.
  void read(std::uint64_t offset, void* data, std::size_t bytes, const std::string& where) const;

 private:
  int fd_ = -1;
};

/// `path`, or `<path>.partial` if only that exists. For `<path>.partial`: `path` if the run has
/// ended meanwhile.
std::string existing_trace(const std::string& path);

/// Whether a writer may have the file open.
enum class Writer : std::uint8_t { maybe, none };

/// Opens a trace for reading, finished or not, even if its writer is alive or was killed, or if the
/// file was cut later. Follows existing_trace(), and waits up to a second for a writer that is
/// opening the file. Throws NotATrace or TraceError.
h5::File open_trace(const std::string& path, Writer writer);

}  // namespace blockscope
