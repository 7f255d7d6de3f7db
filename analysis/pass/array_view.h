// Values of one dataset for one row, and for one recorded layer if the dataset has layers. They
// have the types of the file: bfloat16 or float32 words, 32-bit integers or bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace blockscope {

enum class ViewType : std::uint8_t { bf16, f32, i32, u8 };

/// Does not own the values. Empty if the row has no such values (not recorded, no earlier step).
struct ArrayView {
  const std::byte* data = nullptr;
  std::size_t size = 0;  ///< elements
  ViewType type = ViewType::f32;

  bool empty() const { return data == nullptr; }
  explicit operator bool() const { return !empty(); }
  /// Elements [first, first + count). Only an assert checks the range.
  ArrayView slice(std::size_t first, std::size_t count) const;
  /// For f32 only (LSEs, summaries, probabilities).
  std::span<const float> floats() const;
  /// For i32 only (sets, counts).
  std::span<const std::int32_t> ints() const;
  std::span<const std::uint8_t> bytes() const;
};

/// Widens bf16, or copies f32, into `out` (resized). Returns out as a span.
std::span<const float> to_floats(const ArrayView& view, std::vector<float>& out);

}  // namespace blockscope
