#include "decode_record/files/own_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <system_error>

namespace blockscope {
namespace {

namespace fs = std::filesystem;

// An open-file lock, because HDF5 uses the other kind.
bool set_lock(int descriptor, short type) {
  struct flock request = {};
  request.l_type = type;
  request.l_whence = SEEK_SET;
  return ::fcntl(descriptor, F_OFD_SETLK, &request) == 0;
}

bool is_same(const struct stat& one, const struct stat& other) {
  return one.st_ino == other.st_ino && one.st_dev == other.st_dev;
}

}  // namespace

std::string rename_output(const std::string& from, const std::string& to, bool replace) {
  const unsigned flags = replace ? 0U : RENAME_NOREPLACE;
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), flags) == 0) return "";
  if (replace || (errno != EINVAL && errno != ENOSYS)) return std::strerror(errno);
  // For a file system that can't do both in one step.
  std::error_code error;
  if (fs::exists(fs::symlink_status(to, error))) return std::strerror(EEXIST);
  fs::rename(from, to, error);
  return error ? error.message() : "";
}

OwnFile OwnFile::create(const std::string& path) {
  constexpr int kFlags = O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
  return {path, ::open(path.c_str(), kFlags, 0666)};
}

OwnFile OwnFile::open(const std::string& path) {
  // O_NONBLOCK: a pipe of this name must not block the process.
  return {path, ::open(path.c_str(), O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC)};
}

std::string OwnFile::why_not_open(int error) {
  return error == ELOOP ? "it is a link, which is not followed" : std::strerror(error);
}

OwnFile::~OwnFile() {
  if (descriptor_ < 0) return;
  // Unlock first: a fork of this process has the same open file and would keep the lock.
  static_cast<void>(set_lock(descriptor_, F_UNLCK));
  ::close(descriptor_);
}

std::string OwnFile::direct_name() const {
  std::string name = fmt::format("/proc/self/fd/{}", descriptor_);
  return ::access(name.c_str(), F_OK) == 0 ? name : path_;
}

bool OwnFile::lock() const {
  if (set_lock(descriptor_, F_WRLCK)) return true;
  return errno != EAGAIN && errno != EACCES;
}

bool OwnFile::has_its_name() const {
  struct stat mine = {};
  struct stat named = {};
  return ::fstat(descriptor_, &mine) == 0 && ::lstat(path_.c_str(), &named) == 0 &&
         is_same(mine, named);
}

std::int64_t OwnFile::size() const {
  struct stat status = {};
  return ::fstat(descriptor_, &status) == 0 ? status.st_size : -1;
}

std::string OwnFile::harm(std::int64_t least) const {
  struct stat mine = {};
  struct stat named = {};
  if (::fstat(descriptor_, &mine) != 0)
    return fmt::format("can't be examined: {}", std::strerror(errno));
  const bool there = ::lstat(path_.c_str(), &named) == 0;
  if (!there && errno != ENOENT) return "";  // the folder can't be read, so nothing is known
  if (!there || !is_same(mine, named)) {
    std::string what = there ? "was replaced by another file" : "was removed";
    if (mine.st_nlink > 0) {
      std::error_code error;
      const fs::path now = fs::read_symlink(direct_name(), error);
      what = fmt::format("was moved{}{}", error ? "" : " to " + now.string(),
                         there ? ", and another file has its name" : "");
    }
    return what + " while it was written";
  }
  if (mine.st_size >= least) return "";
  return fmt::format("was cut while it was written: expected at least {} bytes, got {}", least,
                     mine.st_size);
}

std::string OwnFile::rename(const std::string& to, bool replace, std::int64_t least) {
  if (std::string what = harm(least); !what.empty()) return what;
  if (const std::string problem = rename_output(path_, to, replace); !problem.empty()) {
    return fmt::format("can't be renamed to {}: {}", to, problem);
  }
  const std::string before = std::exchange(path_, to);
  if (has_its_name()) return "";
  return fmt::format("was replaced by another file, which is {} now, at the moment of the renaming",
                     std::exchange(path_, before));
}

void OwnFile::remove() const {
  if (has_its_name()) ::unlink(path_.c_str());
}

}  // namespace blockscope
