#include "viewer/model/file_watch.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <vector>

#include "decode_record/base/sha256.h"

namespace blockscope {
namespace {

std::int64_t nanoseconds(const timespec& time) {
  return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

}  // namespace

std::optional<FileMark> mark_file(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return std::nullopt;
  return FileMark{status.st_dev, status.st_ino, status.st_size, nanoseconds(status.st_mtim),
                  nanoseconds(status.st_ctim)};
}

std::optional<ContentSample> sample_content(const std::string& path) {
  constexpr std::uint64_t kPieces = 16;
  constexpr std::uint64_t kPieceBytes = 4096;
  std::error_code error;
  const std::uint64_t size = std::filesystem::file_size(path, error);
  std::ifstream file(path, std::ios::binary);
  if (error || !file) return std::nullopt;
  Sha256 digest;
  std::vector<char> piece(kPieceBytes);
  const std::uint64_t last = size > kPieceBytes ? size - kPieceBytes : 0;
  for (std::uint64_t i = 0; i < kPieces; ++i) {
    file.clear();  // the file ends before the piece
    file.seekg(static_cast<std::streamoff>(last / (kPieces - 1) * i +
                                           (i + 1 == kPieces ? last % (kPieces - 1) : 0)));
    file.read(piece.data(), static_cast<std::streamsize>(piece.size()));
    const auto got = static_cast<std::size_t>(file.gcount());
    digest.update({reinterpret_cast<const std::uint8_t*>(piece.data()), got});
    if (last == 0) break;
  }
  return digest.finish();
}

FileFault fault_since(const FileMark& before, const std::optional<FileMark>& now,
                      bool being_written) {
  if (!now) return FileFault::removed;
  if (now->device != before.device || now->inode != before.inode) return FileFault::replaced;
  if (now->bytes < before.bytes) return FileFault::truncated;
  if (being_written) return FileFault::none;
  const bool same = now->bytes == before.bytes && now->written_ns == before.written_ns;
  return same ? FileFault::none : FileFault::overwritten;
}

void FileWatch::begin(const std::string& path) {
  path_ = path;
  mark_ = mark_file(path);
  sample_ = sample_content(path);
}

FileFault FileWatch::look(bool being_written) {
  const std::optional<FileMark> now = mark_file(path_);
  const FileFault fault = fault_since(*mark_, now, being_written);
  if (fault != FileFault::none) return fault;
  const bool moved = !being_written && now->changed_ns != mark_->changed_ns;
  if (moved && sample_content(path_) != sample_) return FileFault::overwritten;
  mark_ = now;
  return FileFault::none;
}

const char* name_of(FileFault fault) {
  constexpr std::array<const char*, 5> kNames = {"", "removed", "truncated", "replaced",
                                                 "overwritten"};
  return kNames[static_cast<std::size_t>(fault)];
}

std::string describe(FileFault fault, const std::string& path) {
  switch (fault) {
    case FileFault::none:
      break;
    case FileFault::removed:
      return fmt::format(
          "{}: the file was removed while it was open. The window can read it until you close it. "
          "HINT: put the file back and choose Reopen, or close it",
          path);
    case FileFault::truncated:
      return fmt::format(
          "{}: the file became shorter while it was open. Loaded values stay, but reading more may "
          "fail. HINT: Reopen reads the file as it is now",
          path);
    case FileFault::replaced:
      return fmt::format(
          "{}: another file has taken its place. The window still shows the old file. HINT: Reopen "
          "shows the new one",
          path);
    case FileFault::overwritten:
      return fmt::format(
          "{}: the file was overwritten while it was open. Loaded values are older than the values "
          "read from now on, and may not fit them. HINT: Reopen reads the file as it is now",
          path);
  }
  return {};
}

}  // namespace blockscope
