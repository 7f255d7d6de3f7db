// One writer at a time, and a file as long as its superblock says.
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

#include "decode_record/trace_file.h"

namespace blockscope {

namespace {

struct flock whole_file() {
  struct flock request = {};
  request.l_type = F_WRLCK;
  request.l_whence = SEEK_SET;
  return request;
}

/// Whether a process of /proc ("self", "4711") holds a lock of the kind above on the file. The
/// kernel keeps no process id for these (F_OFD_GETLK answers -1), but tells them by descriptor.
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

/// Of those processes that we may look into; nullopt: none of them holds it.
std::optional<std::string> process_with_lock(const struct stat& file) {
  std::error_code error;
  std::filesystem::directory_iterator processes("/proc", error);
  for (; !error && processes != std::filesystem::directory_iterator();
       processes.increment(error)) {
    const std::string name = processes->path().filename();
    if (name.find_first_not_of("0123456789") == std::string::npos &&
        holds_lock(processes->path(), file)) {
      return name;
    }
  }
  return std::nullopt;
}

}  // namespace

TraceFile::WriterLock::WriterLock(const std::string& path, const std::string& name, bool create)
    : path_(path), fd_(::open(path.c_str(), O_RDWR | O_CLOEXEC | (create ? O_CREAT : 0), 0666)) {
  const std::string& shown = name.empty() ? path : name;
  if (fd_ < 0) {
    const char* what = create ? "can't be created" : "can't open the file for writing";
    throw TraceError(fmt::format("{}: {}: {}", shown, what, std::strerror(errno)));
  }
  struct flock request = whole_file();
  // File systems without locks answer other errors: then nothing can be protected.
  if (::fcntl(fd_, F_OFD_SETLK, &request) < 0 && (errno == EAGAIN || errno == EACCES)) {
    ::close(std::exchange(fd_, -1));
    refuse_second_writer(shown, path);
  }
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
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  struct flock request = whole_file();
  const bool locked = ::fcntl(fd, F_OFD_GETLK, &request) == 0 && request.l_type != F_UNLCK;
  ::close(fd);
  return locked;
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

bool TraceFile::WriterLock::names_this_file() const {
  struct stat mine = {};
  struct stat named = {};
  return ::fstat(fd_, &mine) == 0 && ::stat(path_.c_str(), &named) == 0 &&
         mine.st_dev == named.st_dev && mine.st_ino == named.st_ino;
}

bool TraceFile::WriterLock::is_left_over() const {
  constexpr std::array<unsigned char, 8> kHdf5{0x89, 'H', 'D', 'F', '\r', '\n', 0x1a, '\n'};
  constexpr std::size_t kFlags = 11;  // of a superblock of version 3; 0 in a file that was closed
  std::array<unsigned char, 12> start{};
  if (::pread(fd_, start.data(), start.size(), 0) < 0) return false;
  // HDF5 writes its signature last: until then the first bytes are zeros, or the file is empty.
  if (std::ranges::all_of(start, [](unsigned char byte) { return byte == 0; })) return true;
  return std::equal(kHdf5.begin(), kHdf5.end(), start.begin()) && start[8] == 3 &&
         start[kFlags] != 0;
}

void TraceFile::remove_left(const std::string& path) {
  struct stat status = {};
  if (::lstat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) return;
  try {
    const WriterLock lock(path);
    if (lock.is_left_over() && lock.names_this_file()) ::unlink(path.c_str());
  } catch (const TraceError&) {
    // Somebody writes it, or it can't be opened: then it isn't left over, or not ours.
  }
}

TraceFile::WriterLock::~WriterLock() {
  if (fd_ < 0) return;
  // Closing alone leaves the lock to a fork of this process, which has the same open file.
  struct flock request = whole_file();
  request.l_type = F_UNLCK;
  static_cast<void>(::fcntl(fd_, F_OFD_SETLK, &request));
  ::close(fd_);
}

}  // namespace blockscope
