// Whether a file that is open is still the one under its name: removed, cut short, replaced by
// another one, or overwritten in place. No HDF5 here: only what the file system says, and where
// that is not enough some of the bytes.
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
  std::int64_t changed_ns = 0;  ///< ctime: also when it was renamed, linked, or its times were set
};

/// What is under this name now; nullopt: nothing.
std::optional<FileMark> mark_file(const std::string& path);

/// A digest of its length and of some of its bytes, from the first to the last; nullopt: it can't
/// be read. Takes a millisecond, whatever the length.
using ContentSample = std::array<std::uint8_t, 32>;
std::optional<ContentSample> sample_content(const std::string& path);

/// What happened since `before`. A file that is `being_written` may grow and change; any other one
/// is overwritten when it was written to.
FileFault fault_since(const FileMark& before, const std::optional<FileMark>& now,
                      bool being_written);

/// Looks at one file again and again.
class FileWatch {
 public:
  /// Begins with the file as it is now.
  void begin(const std::string& path);
  bool begun() const { return mark_.has_value(); }
  /// What happened since begin(), or since the last call for a file that is being written. Compares
  /// bytes where only ctime moved: a copy that keeps the times is told from a rename.
  FileFault look(bool being_written);

 private:
  std::string path_;
  std::optional<FileMark> mark_;
  std::optional<ContentSample> sample_;
};

/// A sentence for a person, with what to do; empty for `none`.
std::string describe(FileFault fault, const std::string& path);

/// "removed", "truncated", "replaced", "overwritten"; "" for none.
const char* name_of(FileFault fault);

}  // namespace blockscope
