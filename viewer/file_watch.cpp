#include "viewer/file_watch.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <array>

namespace blockscope {

std::optional<FileMark> mark_file(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return std::nullopt;
  return FileMark{status.st_dev, status.st_ino, status.st_size};
}

FileFault fault_since(const FileMark& before, const std::optional<FileMark>& now) {
  if (!now) return FileFault::removed;
  if (now->device != before.device || now->inode != before.inode) return FileFault::replaced;
  return now->bytes < before.bytes ? FileFault::truncated : FileFault::none;
}

const char* name_of(FileFault fault) {
  constexpr std::array<const char*, 4> kNames = {"", "removed", "truncated", "replaced"};
  return kNames[static_cast<std::size_t>(fault)];
}

std::string describe(FileFault fault, const std::string& path) {
  switch (fault) {
    case FileFault::none:
      break;
    case FileFault::removed:
      return fmt::format(
          "{}: was removed while it was open. What is loaded stays, and the rest can be read until "
          "you close it. HINT: put it back and choose Reopen, or close it",
          path);
    case FileFault::truncated:
      return fmt::format(
          "{}: became shorter while it was open. What is loaded stays; reading more may fail. "
          "HINT: Reopen reads the file as it is now",
          path);
    case FileFault::replaced:
      return fmt::format(
          "{}: another file has taken its place. The window still shows the old one. HINT: Reopen "
          "shows the new one",
          path);
  }
  return {};
}

}  // namespace blockscope
