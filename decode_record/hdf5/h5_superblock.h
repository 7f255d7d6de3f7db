// The length of an HDF5 file by its first bytes, for files that the library can't open.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace blockscope::h5 {

/// The end of the file by its superblock (versions 2 and 3, which traces have); nullopt: the
/// superblock can't be read.
std::optional<std::uint64_t> end_of_file(const std::string& path);

struct CutOff {
  std::uint64_t bytes = 0;     ///< real length of the file
  std::uint64_t expected = 0;  ///< length by its superblock
};

/// nullopt: the file is as long as its superblock says, or the superblock can't be read.
std::optional<CutOff> cut_off(const std::string& path);

/// Throws CorruptTrace: the file ends at `file_bytes`, before data that it should have.
[[noreturn]] void throw_cut_off(std::string_view where, std::uint64_t offset, std::uint64_t bytes,
                                std::uint64_t file_bytes);

}  // namespace blockscope::h5
