// SHA-256 (FIPS 180-4), for prompt hashes and checkpoint digests.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace blockscope {

class Sha256 {
 public:
  void update(std::span<const std::uint8_t> bytes);
  /// The digest of everything given so far; the object must not be used afterwards.
  std::array<std::uint8_t, 32> finish();

 private:
  void compress(const std::uint8_t* block);
  std::array<std::uint32_t, 8> state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<std::uint8_t, 64> pending_{};
  std::uint64_t num_bytes_ = 0;
};

/// The digest of a text as 64 hexadecimal digits.
std::string sha256_hex(std::string_view text);
/// The same of a file's content. Throws Error if it can't be read.
std::string sha256_of_file(const std::filesystem::path& path);

}  // namespace blockscope
