// What the first bytes of an HDF5 file say about its length, for files that the library can't open.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace blockscope::h5 {

/// Where the file ends, as its superblock tells (versions 2 and 3, which traces have); nullopt: it
/// can't be read.
std::optional<std::uint64_t> end_of_file(const std::string& path);

struct CutOff {
  std::uint64_t bytes = 0;     ///< that the file has
  std::uint64_t expected = 0;  ///< that its superblock tells
};

/// nullopt: the file is as long as its superblock says, or that can't be read.
std::optional<CutOff> cut_off(const std::string& path);

/// Throws the CorruptTrace of a file that ends, at `file_bytes`, before data that it should have.
[[noreturn]] void throw_cut_off(std::string_view where, std::uint64_t offset, std::uint64_t bytes,
                                std::uint64_t file_bytes);

}  // namespace blockscope::h5
