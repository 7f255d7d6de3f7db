#include "decode_record/files/output_file.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>

#include "decode_record/base/error.h"

namespace blockscope {
namespace {

namespace fs = std::filesystem;

constexpr const char* kMark = ".tmp-";

[[noreturn]] void refuse_folder(const std::string& path, int reason) {
  throw Error(
      fmt::format("{}: can't write here: {}. HINT: check that the folder exists and that you may "
                  "write to it",
                  path, std::strerror(reason)));
}

/// Makes a temporary file for `path` and locks it. The name may be taken: a process in another
/// container can have the same process id and write the same output.
OwnFile create_locked(const std::string& path) {
  for (int attempt = 0;; ++attempt) {
    OwnFile file = OwnFile::create(fmt::format("{}{}{}{}", path, kMark, ::getpid(),
                                               attempt == 0 ? "" : fmt::format(".{}", attempt)));
    if (!file && errno == EEXIST) continue;
    if (!file) refuse_folder(path, errno);
    // Another process that cleans up between the two calls may remove the file.
    if (file.lock() && file.has_its_name()) return file;
  }
}

}  // namespace

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
    const OwnFile left = OwnFile::open(at->path().string());
    if (left && left.lock()) left.remove();
  }
}

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
        fmt::format("{}: expected a regular file or no file, got a {}. HINT: name a "
                    "file for the output",
                    path, fs::is_directory(status) ? "folder" : "device or pipe"));
  }
  // A dangling link belongs to somebody too.
  if (!replace && fs::exists(fs::symlink_status(path, error))) {
    throw UsageError(fmt::format("{}: the output exists. HINT: pass --force to replace it", path));
  }
}

OutputFile::OutputFile(std::string path, bool replace) : path_(std::move(path)), replace_(replace) {
  check_output_name(path_, replace);
  remove_abandoned(path_);
  file_ = create_locked(path_);
}

OutputFile::~OutputFile() {
  if (file_) file_.remove();
}

void OutputFile::fail(int reason) const {
  throw Error(fmt::format("{}: writing failed: {}. HINT: check the space on the disk", path_,
                          reason == 0 ? "unknown error" : std::strerror(reason)));
}

void OutputFile::write(const std::string& text) {
  write([&text](std::ostream& out) {
    out.write(text.data(), static_cast<std::streamsize>(text.size()));
  });
}

void OutputFile::write(const std::function<void(std::ostream&)>& writer) {
  errno = 0;
  std::ofstream out(temporary(), std::ios::binary | std::ios::trunc);
  writer(out);
  out.close();
  if (!out) fail(errno);
  written_ = file_.size();
}

void OutputFile::append(const void* data, std::size_t size) {
  const char* bytes = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t count = ::write(file_.descriptor(), bytes, size);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail(errno);
    bytes += count;
    size -= static_cast<std::size_t>(count);
    written_ += count;
  }
}

void OutputFile::sync() {
  written_ = file_.size();
  if (::fsync(file_.descriptor()) != 0 && errno != EINVAL) fail(errno);
}

void OutputFile::commit() {
  if (const std::string problem = file_.rename(path_, replace_, written_); !problem.empty()) {
    throw Error(fmt::format("{}: can't be finished: {} {}. HINT: run the command again", path_,
                            file_.path(), problem));
  }
  file_ = OwnFile();
}

}  // namespace blockscope
