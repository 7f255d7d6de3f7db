#include "decode_record/read/located_values.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "decode_record/base/error.h"
#include "decode_record/hdf5/h5_superblock.h"
#include "decode_record/read/value_bounds.h"

namespace blockscope {
namespace {

off_t to_offset(std::uint64_t offset) { return static_cast<off_t>(offset); }

}  // namespace

bool LocatedValues::read_cached(std::span<std::byte> out) const {
#ifdef RWF_NOWAIT
  // A read may end early although more is in memory. Only an empty read means that the disk is
  // needed, or that this file system can't say.
  for (std::size_t done = 0; done < bytes;) {
    iovec piece{out.data() + done, bytes - done};
    const ssize_t got = ::preadv2(descriptor, &piece, 1, to_offset(offset + done), RWF_NOWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    done += static_cast<std::size_t>(got);
  }
  if (bounds) check_values(dataset, element_bytes, *bounds, row, 1, out);
  return true;
#else
  return false;
#endif
}

void LocatedValues::read(std::span<std::byte> out) const {
  for (std::size_t done = 0; done < bytes;) {
    const ssize_t got =
        ::pread(descriptor, out.data() + done, bytes - done, to_offset(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw TraceError(fmt::format("{}: read: {}", dataset, std::strerror(errno)));
    if (got == 0) {
      struct stat status = {};
      ::fstat(descriptor, &status);
      h5::throw_cut_off(dataset, offset, bytes, static_cast<std::uint64_t>(status.st_size));
    }
    done += static_cast<std::size_t>(got);
  }
  if (bounds) check_values(dataset, element_bytes, *bounds, row, 1, out);
}

void LocatedValues::prefetch() const {
  ::posix_fadvise(descriptor, 0, 0, POSIX_FADV_RANDOM);
  ::posix_fadvise(descriptor, to_offset(offset), static_cast<off_t>(bytes), POSIX_FADV_WILLNEED);
}

}  // namespace blockscope
