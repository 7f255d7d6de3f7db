// From the name of a trace to the open file, whoever is writing or renaming it meanwhile. Internal
// to decode_record.
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
  /// Of the file that HDF5 has open, whatever its name leads to by now.
  explicit ReadOnlyFile(const h5::File& file);
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

/// `path`, or `<path>.partial` when only that exists; of `<path>.partial`, `path` when its run
/// ended meanwhile.
std::string existing_trace(const std::string& path);

/// Who else may have the file open.
enum class Writer : std::uint8_t { maybe, none };

/// Opens a trace for reading, finished or not: also one whose writer is alive, was killed, or which
/// was cut off afterwards. Follows existing_trace(), and waits up to a second for a writer that is
/// opening the file. Throws NotATrace or TraceError.
h5::File open_trace(const std::string& path, Writer writer);

}  // namespace blockscope
