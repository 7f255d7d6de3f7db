// One writer at a time, and a file as long as its superblock says.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "decode_record/trace_file.h"

namespace blockscope {

TraceFile::WriterLock::WriterLock(const std::string& path)
    : fd_(::open(path.c_str(), O_RDWR | O_CLOEXEC)) {
  if (fd_ < 0) {
    throw TraceError(
        fmt::format("{}: can't open the file for writing: {}", path, std::strerror(errno)));
  }
  struct flock request = {};
  request.l_type = F_WRLCK;
  request.l_whence = SEEK_SET;
  // File systems without locks answer other errors: then nothing can be protected.
  if (::fcntl(fd_, F_OFD_SETLK, &request) < 0 && (errno == EAGAIN || errno == EACCES)) {
    ::close(fd_);
    throw TraceError(
        fmt::format("{}: another process is writing this trace. HINT: wait for it, or "
                    "choose another output.",
                    path));
  }
}

/// A full disk can leave fewer bytes than the superblock (version 3) claims, all of them behind the
/// committed rows; HDF5 refuses such a file, so the missing ones become a hole.
void TraceFile::WriterLock::restore_length() const {
  constexpr off_t kEndOfFileField = 28;
  constexpr std::int64_t kLargestGap = std::int64_t{1} << 30;
  std::int64_t claimed = 0;
  std::uint8_t version = 0;
  struct stat status = {};
  if (::pread(fd_, &version, 1, 8) != 1 || version != 3 || ::fstat(fd_, &status) != 0) return;
  if (::pread(fd_, &claimed, sizeof(claimed), kEndOfFileField) != sizeof(claimed)) return;
  const std::int64_t gap = claimed - status.st_size;
  if (gap <= 0 || gap > kLargestGap) return;
  if (::ftruncate(fd_, claimed) != 0) {
    throw TraceError(
        fmt::format("{}: can't restore the length of the file: {}. HINT: free space on "
                    "the disk.",
                    path_, std::strerror(errno)));
  }
}

TraceFile::WriterLock::~WriterLock() {
  if (fd_ >= 0) ::close(fd_);
}

}  // namespace blockscope
