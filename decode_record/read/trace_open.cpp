#include "decode_record/read/trace_open.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <thread>

namespace blockscope {
namespace {

constexpr std::array<unsigned char, 8> kHdf5Signature{0x89, 'H', 'D', 'F', '\r', '\n', 0x1a, '\n'};
constexpr const char* kPartial = ".partial";
constexpr auto kLockPatience = std::chrono::seconds(1);

void check_signature(const ReadOnlyFile& file, const std::string& path) {
  std::array<unsigned char, 8> found{};
  if (file.size() >= found.size()) file.read(0, found.data(), found.size(), path);
  if (found != kHdf5Signature) {
    throw NotATrace(
        fmt::format("{}: expected an HDF5 file, got something else. HINT: traces come "
                    "from `blockscope capture`.",
                    path));
  }
}

h5::File open_named(const std::string& path, Writer writer) {
  check_signature(ReadOnlyFile(path), path);
  // A file that is being written, whose writer was killed, or which was cut opens in SWMR mode
  // only.
  const bool partial = path.ends_with(kPartial);
  const h5::OpenMode live =
      writer == Writer::maybe && partial ? h5::OpenMode::swmr_read : h5::OpenMode::dead_read;
  try {
    return h5::open_file(path, partial ? live : h5::OpenMode::read);
  } catch (const TraceError&) {
    try {
      return h5::open_file(path, partial ? h5::OpenMode::read : live);
    } catch (const TraceError&) {
      // The first attempt's message is the one that fits the name.
    }
    throw;
  }
}

}  // namespace

std::string existing_trace(const std::string& path) {
  std::error_code error;
  if (std::filesystem::exists(path, error)) return path;
  const std::string finished = path.substr(0, path.rfind(kPartial));
  const std::string other = path.ends_with(kPartial) ? finished : path + kPartial;
  return std::filesystem::exists(other, error) ? other : path;
}

h5::File open_trace(const std::string& path, Writer writer) {
  const auto give_up = std::chrono::steady_clock::now() + kLockPatience;
  while (true) {
    const std::string name = existing_trace(path);
    try {
      return open_named(name, writer);
    } catch (const TraceLocked&) {
      // A writer that resumes a file locks it exclusively for a moment.
      if (std::chrono::steady_clock::now() >= give_up) throw;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    } catch (const TraceError&) {
      if (existing_trace(path) == name) throw;  // else it was renamed just now
    }
  }
}

ReadOnlyFile::ReadOnlyFile(const h5::File& file)
    : fd_(::fcntl(h5::descriptor(file), F_DUPFD_CLOEXEC, 3)) {
  if (fd_ < 0) throw TraceError(fmt::format("{}: {}", file.path, std::strerror(errno)));
}

ReadOnlyFile::ReadOnlyFile(const std::string& path)
    : fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {  // a pipe would wait
  if (fd_ < 0) {
    throw TraceError(fmt::format("{}: can't open the trace: {}", path, std::strerror(errno)));
  }
  struct stat status = {};
  if (::fstat(fd_, &status) == 0 && !S_ISREG(status.st_mode)) {
    ::close(fd_);
    throw NotATrace(fmt::format(
        "{}: expected a regular file, got a folder, pipe or device. HINT: traces come from "
        "`blockscope capture`.",
        path));
  }
}

ReadOnlyFile::~ReadOnlyFile() {
  if (fd_ >= 0) ::close(fd_);
}

std::uint64_t ReadOnlyFile::size() const {
  struct stat status = {};
  return ::fstat(fd_, &status) == 0 && S_ISREG(status.st_mode)
             ? static_cast<std::uint64_t>(status.st_size)
             : 0;
}

void ReadOnlyFile::read(std::uint64_t offset, void* data, std::size_t bytes,
                        const std::string& where) const {
  auto* at = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t got = ::pread(fd_, at, bytes, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw TraceError(fmt::format("{}: read: {}", where, std::strerror(errno)));
    if (got == 0)
      throw CorruptTrace(fmt::format("{}: the file ends before byte {}. HINT: the file is damaged.",
                                     where, offset + bytes));
    at += got;
    offset += static_cast<std::uint64_t>(got);
    bytes -= static_cast<std::size_t>(got);
  }
}

}  // namespace blockscope
