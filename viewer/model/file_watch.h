// Finds out whether an open file was removed, cut short, replaced by another one, or overwritten in
// place. It asks the file system, not HDF5, and compares some bytes where that is not enough.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

namespace blockscope {

enum class FileFault : std::uint8_t { none, removed, truncated, replaced, overwritten };

struct FileMark {
  std::uint64_t device = 0, inode = 0;
  std::int64_t bytes = 0;
  std::int64_t written_ns = 0;  ///< mtime
  std::int64_t changed_ns = 0;  ///< ctime: also changed by a rename, a link or new times
};

/// The file that has this name now; nullopt if there is none.
std::optional<FileMark> mark_file(const std::string& path);

/// A digest of the file's length and of some bytes spread over the whole file; nullopt if it can't
/// be read. Takes a millisecond for any length.
using ContentSample = std::array<std::uint8_t, 32>;
std::optional<ContentSample> sample_content(const std::string& path);

/// What happened since `before`. A file that is `being_written` may grow and change. Any other file
/// counts as overwritten after a write.
FileFault fault_since(const FileMark& before, const std::optional<FileMark>& now,
                      bool being_written);

/// Watches one file.
class FileWatch {
 public:
  /// Starts from the current state of the file.
  void begin(const std::string& path);
  bool begun() const { return mark_.has_value(); }
  /// What happened since begin(), or since the last call for a file that is being written. If only
  /// ctime changed, it compares bytes: that tells a copy with kept times from a rename.
  FileFault look(bool being_written);

 private:
  std::string path_;
  std::optional<FileMark> mark_;
  std::optional<ContentSample> sample_;
};

/// What happened and what to do, for the user; empty for `none`.
std::string describe(FileFault fault, const std::string& path);

/// "removed", "truncated", "replaced", "overwritten"; "" for none.
const char* name_of(FileFault fault);

}  // namespace blockscope
