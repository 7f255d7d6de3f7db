// SHA-256 (FIPS 180-4), incremental; for the checkpoint digest that a trace and a calibration
// carry.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace blockscope {

class Sha256 {
 public:
  void update(const void* data, std::size_t size);
  void update(std::string_view text) { update(text.data(), text.size()); }
  /// 64 lower-case hex digits; call once, at the end.
  std::string finish();

 private:
  void compress(const std::uint8_t* chunk);
  std::array<std::uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                         0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<std::uint8_t, 64> buffer_{};
  std::size_t used_ = 0;
  std::uint64_t total_ = 0;
};

}  // namespace blockscope
