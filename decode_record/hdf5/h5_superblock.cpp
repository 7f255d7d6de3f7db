#include "decode_record/hdf5/h5_superblock.h"

#include <fmt/format.h>

#include <array>
#include <cstddef>
#include <filesystem>
#include <fstream>

#include "decode_record/base/error.h"

namespace blockscope::h5 {

std::optional<std::uint64_t> end_of_file(const std::string& path) {
  // HDF5 file format, II.A: version at byte 8, size of offsets at 9, base address at 12, end of
  // file at 28, both little-endian with 8 bytes.
  constexpr std::size_t kVersion = 8;
  constexpr std::size_t kOffsetSize = 9;
  constexpr std::size_t kEnd = 28;
  std::array<unsigned char, kEnd + 8> bytes{};
  std::ifstream file(path, std::ios::binary);
  if (!file.read(reinterpret_cast<char*>(bytes.data()), bytes.size())) return std::nullopt;
  constexpr std::array<unsigned char, 8> kSignature{0x89, 'H', 'D', 'F', '\r', '\n', 0x1a, '\n'};
  for (std::size_t i = 0; i < kSignature.size(); ++i) {
    if (bytes.at(i) != kSignature.at(i)) return std::nullopt;
  }
  const bool known = bytes[kVersion] == 2 || bytes[kVersion] == 3;
  if (!known || bytes[kOffsetSize] != 8) return std::nullopt;
  std::uint64_t end = 0;
  for (std::size_t i = 8; i-- > 0;) end = end << 8U | bytes.at(kEnd + i);
  return end;
}

std::optional<CutOff> cut_off(const std::string& path) {
  const auto end = end_of_file(path);
  if (!end) return std::nullopt;
  CutOff result;
  result.expected = *end;
  std::error_code error;
  result.bytes = std::filesystem::file_size(path, error);
  if (error || result.bytes >= result.expected) return std::nullopt;
  return result;
}

void throw_cut_off(std::string_view where, std::uint64_t offset, std::uint64_t bytes,
                   std::uint64_t file_bytes) {
  throw CorruptTrace(
      fmt::format("{}: expected data at bytes {} to {}, got the end of the file at {}. HINT: the "
                  "file was cut off; `blockscope repack --repair` keeps the rows that are whole.",
                  where, offset, offset + bytes, file_bytes));
}

}  // namespace blockscope::h5
