#include "decode_record/output_file.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>

#include "decode_record/error.h"

namespace blockscope {
namespace {

namespace fs = std::filesystem;

}  // namespace

void refuse_input_as_output(const std::string& path, const std::vector<std::string>& inputs) {
  for (const std::string& input : inputs) {
    std::error_code error;
    if (!fs::equivalent(input, path, error)) continue;
    throw UsageError(fmt::format(
        "{}: the command reads this file. HINT: name another one for the output", path));
  }
}

OutputFile::OutputFile(std::string path, bool replace) : path_(std::move(path)) {
  std::error_code error;
  const fs::file_status status = fs::status(path_, error);
  if (fs::exists(status) && !fs::is_regular_file(status)) {
    throw Error(fmt::format("{}: not a regular file. HINT: name a file for the output", path_));
  }
  if (fs::exists(status) && !replace) {
    throw UsageError(fmt::format("{}: the output exists. HINT: pass --force to replace it", path_));
  }
  std::string temporary = fmt::format("{}.tmp-{}", path_, ::getpid());
  errno = 0;
  if (!std::ofstream(temporary, std::ios::binary | std::ios::trunc)) {
    throw Error(
        fmt::format("{}: can't write here: {}. HINT: check that the folder exists and that "
                    "you may write to it",
                    path_, std::strerror(errno)));
  }
  temporary_ = std::move(temporary);
}

OutputFile::OutputFile(OutputFile&& other) noexcept
    : path_(std::move(other.path_)), temporary_(std::exchange(other.temporary_, {})) {}

OutputFile& OutputFile::operator=(OutputFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(temporary_, other.temporary_);
  return *this;
}

OutputFile::~OutputFile() {
  if (temporary_.empty()) return;
  std::error_code error;
  fs::remove(temporary_, error);
}

void OutputFile::write(const std::string& text) const {
  errno = 0;
  std::ofstream out(temporary_, std::ios::binary | std::ios::trunc);
  out.write(text.data(), static_cast<std::streamsize>(text.size()));
  out.close();
  if (!out) {
    throw Error(fmt::format("{}: writing failed: {}. HINT: check the space on the disk", path_,
                            errno == 0 ? "unknown error" : std::strerror(errno)));
  }
}

void OutputFile::commit() {
  std::error_code error;
  fs::rename(temporary_, path_, error);
  if (error) {
    throw Error(fmt::format("{}: can't rename {} to it: {}", path_, temporary_, error.message()));
  }
  temporary_.clear();
}

}  // namespace blockscope
