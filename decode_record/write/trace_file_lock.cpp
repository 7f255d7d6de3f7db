// Ensures one writer at a time, detects that somebody moved or cut its file, and restores the
// length that the superblock claims.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <utility>

#include "decode_record/hdf5/h5_superblock.h"
#include "decode_record/write/trace_file.h"

namespace blockscope {

namespace {

/// Whether a dead writer left the file: it is empty, or has HDF5's mark of a writer.
bool is_left_over(const OwnFile& file) {
  constexpr std::array<unsigned char, 8> kHdf5{0x89, 'H', 'D', 'F', '\r', '\n', 0x1a, '\n'};
  constexpr std::size_t kFlags = 11;  // in a superblock of version 3; 0 in a closed file
  std::array<unsigned char, 12> start{};
  struct stat status = {};
  if (::fstat(file.descriptor(), &status) != 0 || !S_ISREG(status.st_mode)) return false;
  if (::pread(file.descriptor(), start.data(), start.size(), 0) < 0) return false;
  // HDF5 writes its signature last. Until then the first bytes are zeros, or the file is empty.
  if (std::ranges::all_of(start, [](unsigned char byte) { return byte == 0; })) return true;
  return std::equal(kHdf5.begin(), kHdf5.end(), start.begin()) && start[8] == 3 &&
         start[kFlags] != 0;
}

/// Whether a process of /proc ("self", "4711") holds an open-file lock on the file. The kernel
/// keeps no process id for these locks (F_OFD_GETLK gives -1), but lists them by descriptor.
bool holds_lock(const std::filesystem::path& process, const struct stat& file) {
  std::error_code error;
  std::filesystem::directory_iterator descriptors(process / "fd", error);
  for (; !error && descriptors != std::filesystem::directory_iterator();
       descriptors.increment(error)) {
    struct stat opened = {};
    if (::stat(descriptors->path().c_str(), &opened) != 0 || opened.st_dev != file.st_dev ||
        opened.st_ino != file.st_ino) {
      continue;
    }
    std::ifstream lines(process / "fdinfo" / descriptors->path().filename());
    for (std::string line; std::getline(lines, line);) {
      if (line.starts_with("lock:") && line.find("OFDLCK") != std::string::npos) return true;
    }
  }
  return false;
}

/// The process with the lock, among those that we may inspect; nullopt: none of them holds it.
std::optional<std::string> process_with_lock(const struct stat& file) {
  std::error_code error;
  std::filesystem::directory_iterator processes("/proc", error);
  for (; !error && processes != std::filesystem::directory_iterator(); processes.increment(error)) {
    const std::string name = processes->path().filename();
    if (name.find_first_not_of("0123456789") == std::string::npos &&
        holds_lock(processes->path(), file)) {
      return name;
    }
  }
  return std::nullopt;
}

}  // namespace

OwnFile TraceFile::create_unborn(const std::string& path) {
  // It has another name until it is a trace, so that a file `path` is always readable, even after a
  // kill.
  const std::string unborn = path + ".new";
  while (true) {
    const Left left = remove_left(unborn);
    if (left == Left::written) refuse_second_writer(path, unborn);
    if (left == Left::strange) {
      throw TraceError(
          fmt::format("{}: expected no file of this name, because a new trace starts under it, got "
                      "a link or another file. HINT: move it away",
                      unborn));
    }
    OwnFile own = OwnFile::create(unborn);
    if (own && own.lock()) return own;
    if (own) refuse_second_writer(path, unborn);
    if (errno == EEXIST) continue;  // another process started at this moment
    throw TraceError(fmt::format("{}: can't be created: {}", path, std::strerror(errno)));
  }
}

OwnFile TraceFile::lock_writer(const std::string& path) {
  OwnFile own = OwnFile::open(path);
  if (!own) {
    throw TraceError(
        fmt::format("{}: can't open the file for writing: {}", path, OwnFile::why_not_open(errno)));
  }
  // File systems without locks give other errors. Then nothing can be protected.
  if (!own.lock()) refuse_second_writer(path, path);
  return own;
}

void TraceFile::refuse_second_writer(const std::string& path, const std::string& locked) {
  struct stat file = {};
  const bool found = ::stat(locked.c_str(), &file) == 0;
  if (found && holds_lock("/proc/self", file)) {
    throw TraceError(
        fmt::format("{}: this process is still writing this trace. HINT: end the recording that is "
                    "open (leave its `with` block), or choose another output.",
                    path));
  }
  const std::optional<std::string> process = found ? process_with_lock(file) : std::nullopt;
  throw TraceError(
      fmt::format("{}: another process is writing this trace{}. HINT: wait for it, or choose "
                  "another output.",
                  path, process ? fmt::format(" (process {})", *process) : ""));
}

bool TraceFile::has_writer(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) return false;
  struct flock request = {};
  request.l_type = F_WRLCK;
  request.l_whence = SEEK_SET;
  const bool locked = ::fcntl(fd, F_OFD_GETLK, &request) == 0 && request.l_type != F_UNLCK;
  ::close(fd);
  return locked;
}

/// A full disk can leave fewer bytes than the superblock (version 3) claims. All missing bytes are
/// after the committed rows. HDF5 refuses such a file, so the missing bytes become a hole.
void TraceFile::restore_length(const OwnFile& file) {
  constexpr std::int64_t kLargestGap = std::int64_t{1} << 30;
  const auto end = h5::end_of_file(file.direct_name());
  if (!end) return;
  const std::int64_t gap = static_cast<std::int64_t>(*end) - file.size();
  if (gap <= 0 || gap > kLargestGap) return;
  if (::ftruncate(file.descriptor(), static_cast<off_t>(*end)) != 0) {
    throw TraceError(
        fmt::format("{}: can't restore the length of the file: {}. HINT: free space on "
                    "the disk.",
                    file.path(), std::strerror(errno)));
  }
}

TraceFile::Left TraceFile::remove_left(const std::string& path) {
  const OwnFile left = OwnFile::open(path);
  if (!left) return errno == ENOENT ? Left::nothing : Left::strange;
  if (!left.lock()) return Left::written;
  if (!is_left_over(left)) return Left::strange;
  left.remove();
  return Left::removed;
}

void TraceFile::refuse_harm(const std::string& what) const {
  throw TraceError(
      fmt::format("{}: {}. HINT: leave the file alone until the run ends; where it still is, "
                  "`blockscope repack "
                  "--repair` keeps the rows that are whole",
                  own_.path(), what));
}

}  // namespace blockscope
