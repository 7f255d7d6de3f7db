// Whether a file that is open is still the one under its name: removed, cut short, or replaced by
// another one. No HDF5 here: only what the file system says.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace blockscope {

enum class FileFault : std::uint8_t { none, removed, truncated, replaced };

struct FileMark {
  std::uint64_t device = 0, inode = 0;
  std::int64_t bytes = 0;
};

/// What is under this name now; nullopt: nothing.
std::optional<FileMark> mark_file(const std::string& path);

/// What happened since `before`. A file that grew is still the same one.
FileFault fault_since(const FileMark& before, const std::optional<FileMark>& now);

/// A sentence for a person, with what to do; empty for `none`.
std::string describe(FileFault fault, const std::string& path);

/// "removed", "truncated", "replaced"; "" for none.
const char* name_of(FileFault fault);

}  // namespace blockscope
