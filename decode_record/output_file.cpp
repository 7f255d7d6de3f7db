#include "decode_record/output_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <tuple>
#include <utility>

#include "decode_record/error.h"

namespace blockscope {
namespace {

namespace fs = std::filesystem;

constexpr const char* kMark = ".tmp-";

/// A lock that ends with the process, whatever ends it. Open-file locks: HDF5 takes the other kind.
bool lock_file(int descriptor) {
  struct flock request = {};
  request.l_type = F_WRLCK;
  request.l_whence = SEEK_SET;
  if (::fcntl(descriptor, F_OFD_SETLK, &request) == 0) return true;
  return errno != EAGAIN && errno != EACCES;  // a file system without locks: nothing can be told
}

bool is_still_there(int descriptor, const std::string& path) {
  struct stat by_descriptor = {};
  struct stat by_name = {};
  return ::fstat(descriptor, &by_descriptor) == 0 && ::stat(path.c_str(), &by_name) == 0 &&
         by_descriptor.st_ino == by_name.st_ino && by_descriptor.st_dev == by_name.st_dev;
}

[[noreturn]] void refuse_folder(const std::string& path, int reason) {
  throw Error(
      fmt::format("{}: can't write here: {}. HINT: check that the folder exists and that you may "
                  "write to it",
                  path, std::strerror(reason)));
}

/// The temporary files of `path` that nobody holds: their processes were killed.
void remove_abandoned(const std::string& path) {
  const fs::path target(path);
  const std::string beginning = target.filename().string() + kMark;
  const fs::path folder = target.has_parent_path() ? target.parent_path() : fs::path(".");
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    const bool ours = name.starts_with(beginning) && name.size() > beginning.size() &&
                      name.find_first_not_of("0123456789.", beginning.size()) == std::string::npos;
    if (!ours || !fs::is_regular_file(at->symlink_status(error))) continue;
    const int descriptor = ::open(at->path().c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (descriptor < 0) continue;
    if (lock_file(descriptor)) ::unlink(at->path().c_str());
    ::close(descriptor);
  }
}

/// Makes a temporary file for `path` and locks it. The name may be taken: a process of another
/// container can have this id and write the same output.
std::pair<std::string, int> create_locked(const std::string& path) {
  for (int attempt = 0;; ++attempt) {
    const std::string temporary = fmt::format("{}{}{}{}", path, kMark, ::getpid(),
                                              attempt == 0 ? "" : fmt::format(".{}", attempt));
    const int descriptor = ::open(temporary.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (descriptor < 0 && errno == EEXIST) continue;
    if (descriptor < 0) refuse_folder(path, errno);
    // Somebody who cleans up between the two calls takes the file away.
    if (lock_file(descriptor) && is_still_there(descriptor, temporary)) {
      return {temporary, descriptor};
    }
    ::close(descriptor);
  }
}

}  // namespace

void check_meant_as_name(const std::string& path) {
  if (path.empty()) throw UsageError("expected the name of an output, got an empty one");
  if (path == kStandardOutput) {
    throw UsageError(
        "-: expected the name of a file or folder, got the standard output, which can't hold this "
        "output. HINT: name a file; ./- is one of this name");
  }
  if (!path.starts_with("--")) return;
  throw UsageError(fmt::format(
      "{}: expected the name of an output, got an option. HINT: give the name before it; ./{} is a "
      "file of this name",
      path, path));
}

void check_output_name(const std::string& path, bool replace) {
  check_meant_as_name(path);
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (fs::exists(status) && !fs::is_regular_file(status)) {
    throw UsageError(
        fmt::format("{}: expected a regular file or nothing there, got a {}. HINT: name a "
                    "file for the output",
                    path, fs::is_directory(status) ? "folder" : "device or pipe"));
  }
  // A link to nothing is somebody's too.
  if (!replace && fs::exists(fs::symlink_status(path, error))) {
    throw UsageError(fmt::format("{}: the output exists. HINT: pass --force to replace it", path));
  }
}

std::string rename_output(const std::string& from, const std::string& to, bool replace) {
  const unsigned flags = replace ? 0U : RENAME_NOREPLACE;
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), flags) == 0) return "";
  if (replace || (errno != EINVAL && errno != ENOSYS)) return std::strerror(errno);
  // A file system that can't do both in one step.
  std::error_code error;
  if (fs::exists(fs::symlink_status(to, error))) return std::strerror(EEXIST);
  fs::rename(from, to, error);
  return error ? error.message() : "";
}

OutputFile::OutputFile(std::string path, bool replace) : path_(std::move(path)), replace_(replace) {
  check_output_name(path_, replace);
  remove_abandoned(path_);
  std::tie(temporary_, lock_) = create_locked(path_);
}

OutputFile::OutputFile(OutputFile&& other) noexcept
    : path_(std::move(other.path_)),
      temporary_(std::exchange(other.temporary_, {})),
      replace_(other.replace_),
      lock_(std::exchange(other.lock_, -1)) {}

OutputFile& OutputFile::operator=(OutputFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(temporary_, other.temporary_);
  std::swap(replace_, other.replace_);
  std::swap(lock_, other.lock_);
  return *this;
}

OutputFile::~OutputFile() {
  std::error_code error;
  if (!temporary_.empty()) fs::remove(temporary_, error);
  if (lock_ >= 0) ::close(lock_);
}

void OutputFile::write(const std::string& text) const {
  write([&text](std::ostream& out) {
    out.write(text.data(), static_cast<std::streamsize>(text.size()));
  });
}

void OutputFile::write(const std::function<void(std::ostream&)>& writer) const {
  errno = 0;
  std::ofstream out(temporary_, std::ios::binary | std::ios::trunc);
  writer(out);
  out.close();
  if (!out) {
    throw Error(fmt::format("{}: writing failed: {}. HINT: check the space on the disk", path_,
                            errno == 0 ? "unknown error" : std::strerror(errno)));
  }
}

void OutputFile::commit() {
  if (const std::string problem = rename_output(temporary_, path_, replace_); !problem.empty()) {
    throw Error(fmt::format("{}: can't rename {} to it: {}", path_, temporary_, problem));
  }
  temporary_.clear();
}

}  // namespace blockscope
